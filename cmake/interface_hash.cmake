# Run at build time: writes a header with a hash over everything that a plugin and the executable must
# agree on, touching it only when something changed.
file(GLOB headers LIST_DIRECTORIES false ${SOURCE_DIR}/lib/base/*.hpp ${SOURCE_DIR}/lib/tensor/*.hpp
     ${SOURCE_DIR}/lib/comm/*.hpp ${SOURCE_DIR}/kernels/*.hpp ${SOURCE_DIR}/kernels/*.inc
     ${SOURCE_DIR}/kernels/quantize/*.hpp ${SOURCE_DIR}/kernels/cuda/rules/*.hpp)
list(SORT headers)
set(all "${COMPILER}")
foreach(header IN LISTS headers)
  file(SHA256 ${header} hash)
  string(APPEND all " ${hash}")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 32 hash)
set(content "#define LLMTRAIN_INTERFACE_HASH \"${hash}\"\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${content}")
  file(WRITE ${OUTPUT} "${content}")
endif()
