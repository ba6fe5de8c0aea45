// Counts what a process hands to MPI, between the program and the library: what llmtrain says that
// it sends is held against this. To be loaded before the program (LD_PRELOAD).
#include <atomic>

#include <mpi.h>

namespace {
std::atomic<unsigned long long> sent_bytes{0};
}

extern "C" {

unsigned long long mesh_test_sent_bytes() { return sent_bytes; }

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  sent_bytes += static_cast<unsigned long long>(count) * static_cast<unsigned long long>(size);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
}
