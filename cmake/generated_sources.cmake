# llmtrain_embed(<target> <folder> <header> <namespace> <function>): compiles <folder>/*.yaml into the
# executable, so that an installed llmtrain carries them: `<function>(name)` is a file's text.
function(llmtrain_embed target folder header namespace function)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.yaml)
  set(rows "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"yaml(${text})yaml\"},\n")
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  set(source ${CMAKE_BINARY_DIR}/generated/${function}s.cpp)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/embedded_texts.cpp.in ${source} @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()
llmtrain_embed(llmtrain_train configs lib/train/recipe.hpp llmtrain::train builtin_recipe)
llmtrain_embed(llmtrain_plan configs/hardware lib/plan/hardware_sheet.hpp llmtrain::plan builtin_sheet)

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
