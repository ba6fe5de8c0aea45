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

# llmtrain_plugin_library(<target> <sources>...): a library that the executable loads. It links none of
# our libraries: the executable exports them.
function(llmtrain_plugin_library target)
  add_library(${target} MODULE ${ARGN})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_features(${target} PRIVATE cxx_std_20)
  # fmt's declarations: its code is the executable's.
  target_include_directories(${target} SYSTEM PRIVATE ${FMT_INCLUDE_DIR})
  llmtrain_shares_interface(${target})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/apps/llmtrain)
endfunction()

# llmtrain_loads_plugins(<target>): an executable that exports what plugins use.
function(llmtrain_loads_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  target_link_libraries(${target} PRIVATE
    -Wl,--whole-archive llmtrain_base llmtrain_tensor llmtrain_kernels llmtrain_kernels_cuda_rules llmtrain_fmt -Wl,--no-whole-archive)
endfunction()
