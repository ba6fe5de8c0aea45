#pragma once
/// What a test may ask of the emulated GPU.

#include <cstdint>
#include <cuda_runtime.h>
#include <functional>

namespace simt {

/// In which order the threads of a block take their turns. A kernel whose result depends on it has
/// a race.
enum class Order : std::uint8_t { ascending, descending, shuffled };
void set_order(Order order);

/// Puts work of a library at the end of a stream, and lets time pass on the device's clock, which
/// stands still otherwise.
void enqueue_call(cudaStream_t stream, std::function<void()> work);
void pass_time(double microseconds);
/// What each kernel of ours and each attention of the library takes.
inline constexpr double kLaunchMicroseconds = 1;
/// As enqueue_call() for work that waits for another process and calls run_what_is_ready() meanwhile; with
/// `ready` it would not have to wait.
void enqueue_exchange(cudaStream_t stream, std::function<void()> work, std::function<bool()> ready);
/// All that the stream holds, as if somebody waited for it.
void carry_out(cudaStream_t stream);
/// Other streams go on, as far as what they begin with is ready.
void run_what_is_ready();

}  // namespace simt

/// Since the program began: how often the host waited for the device (`emulated_host_waits`), and
/// how many kernels and library calls it launched, but for those of graphs (`emulated_launches`).
/// By dlsym.
using EmulatedCountFunction = std::int64_t (*)();
