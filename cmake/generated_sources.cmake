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

# Commit and compiler, looked up at every build.
set(version_source ${CMAKE_BINARY_DIR}/generated/version.cpp)
add_custom_target(llmtrain_version BYPRODUCTS ${version_source}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${version_source}
          -DVERSION=${PROJECT_VERSION}
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
          -P ${CMAKE_SOURCE_DIR}/cmake/version.cmake VERBATIM)
target_sources(llmtrain_train PRIVATE ${version_source})
set_source_files_properties(${version_source} PROPERTIES GENERATED TRUE)
add_dependencies(llmtrain_train llmtrain_version)
