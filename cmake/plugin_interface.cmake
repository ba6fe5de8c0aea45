# A hash over everything that a plugin and the executable must agree on, made at each build.
set(interface_hash ${CMAKE_BINARY_DIR}/generated/interface_hash.h)
add_custom_target(llmtrain_interface_hash BYPRODUCTS ${interface_hash}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${interface_hash}
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
          -P ${CMAKE_SOURCE_DIR}/cmake/interface_hash.cmake VERBATIM)

# llmtrain_shares_interface(<target>): sources of the target include "interface_hash.h".
function(llmtrain_shares_interface target)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  add_dependencies(${target} llmtrain_interface_hash)
endfunction()
