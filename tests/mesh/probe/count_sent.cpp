// Tells of each message that a process hands to MPI, between the program and the library: what
// llmtrain says that it sends is held against this. To be loaded before the program (LD_PRELOAD).
#include <atomic>

#include <mpi.h>

namespace {
using Watcher = void (*)(unsigned long long bytes);
std::atomic<Watcher> watcher{nullptr};
}  // namespace

extern "C" {

/// `tell` is called by the thread that sends, before each message; it may be null.
void mesh_test_watch_sends(Watcher tell) { watcher = tell; }

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  if (const Watcher tell = watcher) {
    tell(static_cast<unsigned long long>(count) * static_cast<unsigned long long>(size));
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
}
