# Language, warnings and optimisation flags that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(llmtrain_flags INTERFACE)
target_include_directories(llmtrain_flags INTERFACE ${CMAKE_SOURCE_DIR})
# No contraction of a*b+c by the compiler: results must not depend on what it happened to fuse.
target_compile_options(llmtrain_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -ffp-contract=off>)
if(LLMTRAIN_SANITIZE)
  target_compile_options(llmtrain_flags INTERFACE -fsanitize=${LLMTRAIN_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")  # checks keep loops from becoming vectors, which is no error here
    target_compile_options(llmtrain_flags INTERFACE -Wno-pass-failed)
  endif()
  target_link_options(llmtrain_flags INTERFACE -fsanitize=${LLMTRAIN_SANITIZE})
endif()
