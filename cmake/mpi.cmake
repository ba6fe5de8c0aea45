# The MPI plugin: lib/comm/mpi in a library of its own, which the executable loads when a launcher has
# started several processes.
#
# LLMTRAIN_MPI is ON, OFF or AUTO (where MPI is found).
if(NOT LLMTRAIN_MPI STREQUAL "OFF")
  if(LLMTRAIN_MPI STREQUAL "ON")
    find_package(MPI REQUIRED COMPONENTS C)
  else()
    find_package(MPI COMPONENTS C)
  endif()
endif()
if(MPI_C_FOUND)
  llmtrain_plugin_library(llmtrain_mpi ${CMAKE_SOURCE_DIR}/lib/comm/mpi/mpi_transport.cpp)
  target_link_libraries(llmtrain_mpi PRIVATE MPI::MPI_C)
  target_compile_definitions(llmtrain_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)  # C alone
  target_compile_options(llmtrain_mpi PRIVATE -Wall -Wextra -Werror)
  install(TARGETS llmtrain_mpi LIBRARY DESTINATION lib/llmtrain)
else()
  message(STATUS "MPI plugin: no MPI found, not built")
endif()
