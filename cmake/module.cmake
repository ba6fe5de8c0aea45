# llmtrain_module(<folder> DEPS <targets>...): one static library per folder.
#
# Every *.cpp directly in the folder and in its sub-folders is compiled; a sub-folder that is a
# module of its own, or that needs its own flags, is named in EXCLUDE. `lib/base` becomes the target
# llmtrain::base, `kernels` becomes llmtrain::kernels.
function(llmtrain_module folder)
  cmake_parse_arguments(ARG "" "" "DEPS;EXCLUDE" ${ARGN})
  string(REGEX REPLACE "^lib/" "" name ${folder})
  string(REPLACE "/" "_" name ${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_SOURCE_DIR}/${excluded}/")
  endforeach()
  if(sources)
    add_library(llmtrain_${name} STATIC ${sources})
    target_link_libraries(llmtrain_${name} PUBLIC llmtrain_flags ${ARG_DEPS})
  else()
    add_library(llmtrain_${name} INTERFACE)
    target_link_libraries(llmtrain_${name} INTERFACE llmtrain_flags ${ARG_DEPS})
  endif()
  add_library(llmtrain::${name} ALIAS llmtrain_${name})
endfunction()
