#pragma once
/// Switching between stacks of one operating-system thread.

#include <cstddef>

namespace simt {

/// Where a stack that does not run now goes on.
struct Context {
  void* stack_pointer = nullptr;
#if !defined(__x86_64__)
  void* native = nullptr;
#endif
};

/// Lets `context` begin in `entry`, which must not return, on the memory [stack, stack + bytes).
void prepare(Context& context, std::byte* stack, std::size_t bytes, void (*entry)());

/// Stops here, to be gone on with by a switch to `from`, and goes on at `to`.
void switch_stacks(Context& from, const Context& to);

}  // namespace simt
