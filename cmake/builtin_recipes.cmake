# Compiles configs/*.yaml into the executable, so that an installed llmtrain carries its recipes.
file(GLOB recipes CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/*.yaml)
set(rows "")
foreach(recipe IN LISTS recipes)
  get_filename_component(name ${recipe} NAME_WE)
  file(READ ${recipe} text)
  string(APPEND rows "    {\"${name}\", R\"recipe(${text})recipe\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${recipe})
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/builtin_recipes.cpp.in
               ${CMAKE_BINARY_DIR}/generated/builtin_recipes.cpp @ONLY)
target_sources(llmtrain_train PRIVATE ${CMAKE_BINARY_DIR}/generated/builtin_recipes.cpp)
