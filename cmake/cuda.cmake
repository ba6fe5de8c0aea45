# The CUDA plugin: kernels/cuda in a library of its own, which the executable loads when a GPU is asked
# for. It links none of our libraries: the executable exports them.
#
# LLMTRAIN_CUDA is ON, OFF or AUTO (where nvcc is found). With LLMTRAIN_CUDA_LIBRARIES off, all kernels
# are our own.
option(LLMTRAIN_CUDA_LIBRARIES "Use NVIDIA's libraries in the CUDA plugin where there are any" ON)

# llmtrain_cuda_library(<prefix> <found>): of cuda_sources, <prefix>*.cpp where the toolkit has the
# library, and no_<prefix>.cpp elsewhere.
macro(llmtrain_cuda_library prefix found)
  if(LLMTRAIN_CUDA_LIBRARIES AND ${found})
    list(FILTER cuda_sources EXCLUDE REGEX "/no_${prefix}[^/]*[.]cpp$")
  else()
    list(FILTER cuda_sources EXCLUDE REGEX "/${prefix}[^/]*[.]cpp$")
    message(STATUS "CUDA plugin: without ${prefix}")
  endif()
endmacro()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cpp
     ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)

if(LLMTRAIN_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(cuda_wanted ON)
  else()
    set(cuda_wanted OFF)
    message(STATUS "CUDA plugin: no nvcc found, not built")
  endif()
else()
  set(cuda_wanted ${LLMTRAIN_CUDA})
endif()

if(cuda_wanted)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "GPU architectures")
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
    if(LLMTRAIN_CUDA STREQUAL "AUTO")
      message(STATUS "CUDA plugin: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 13, not built")
      set(cuda_wanted OFF)
    else()
      message(FATAL_ERROR "The CUDA plugin needs nvcc 13, found ${CMAKE_CUDA_COMPILER_VERSION}")
    endif()
  endif()
endif()
if(cuda_wanted)
  find_package(CUDAToolkit REQUIRED)
  llmtrain_cuda_library(cublaslt "TARGET;CUDA::cublasLt")
  # cuDNN is loaded when a GPU is opened: only its headers are needed here.
  find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  llmtrain_cuda_library(cudnn CUDNN_INCLUDE_DIR)
  # Likewise NCCL, when ranks on GPUs first need it.
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  llmtrain_cuda_library(nccl NCCL_INCLUDE_DIR)
  llmtrain_plugin_library(llmtrain_cuda ${cuda_sources})
  # CMake drops the toolkit's folder from the run path, because the linker searches it by itself.
  set_target_properties(llmtrain_cuda PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    BUILD_RPATH "${CUDAToolkit_LIBRARY_DIR}" INSTALL_RPATH "${CUDAToolkit_LIBRARY_DIR}")
  # No contraction of a*b+c, as on the CPU: kernels say fma where they mean it.
  target_compile_options(llmtrain_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -fmad=false -Werror=all-warnings
      -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Werror,-ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Werror
      -ffp-contract=off>)
  string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(llmtrain_cuda PRIVATE
    LLMTRAIN_CUDA_ARCHITECTURES="${architectures}")
  target_link_libraries(llmtrain_cuda PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  if(LLMTRAIN_CUDA_LIBRARIES AND TARGET CUDA::cublasLt)
    target_link_libraries(llmtrain_cuda PRIVATE CUDA::cublasLt)
  endif()
  if(CUDNN_INCLUDE_DIR)
    target_include_directories(llmtrain_cuda SYSTEM PRIVATE ${CUDNN_INCLUDE_DIR})
    target_compile_definitions(llmtrain_cuda PRIVATE LLMTRAIN_CUDNN_LIBRARY="libcudnn.so.9")
  endif()
  if(NCCL_INCLUDE_DIR)
    target_include_directories(llmtrain_cuda SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
    target_compile_definitions(llmtrain_cuda PRIVATE LLMTRAIN_NCCL_LIBRARY="libnccl.so.2")
  endif()
  install(TARGETS llmtrain_cuda LIBRARY DESTINATION lib/llmtrain)
endif()
