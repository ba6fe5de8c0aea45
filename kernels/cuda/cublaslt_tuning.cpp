// Which algorithm is fastest: by trial, in memory that nothing else uses, because products that
// accumulate cannot be repeated on the step's own.
#include <algorithm>
#include <limits>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/matmul_plain.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Each candidate is timed kRounds times over kRepeats launches; its least time counts. Rounds go
/// over all candidates, so that a change of clocks meets them all.
constexpr int kRounds = 3;
constexpr int kRepeats = 5;
/// The library's own first choice stays unless another takes less than this share of its time:
/// noise does not decide.
constexpr double kBetter = 0.98;
constexpr std::uint64_t kBlock = 256;

/// Blocks of scratch memory, one after the other.
class ScratchBlocks {
 public:
  explicit ScratchBlocks(const View& scratch)
      : next_(reinterpret_cast<std::uintptr_t>(scratch.data)),
        end_(next_ + (scratch.defined() ? scratch.bytes() : 0)) {}

  /// A block whose address has exactly this alignment, as far as 256 bytes go; null without room.
  std::byte* take(std::uint64_t bytes, std::uint64_t alignment) {
    const std::uintptr_t begin =
        (next_ + kBlock - 1) / kBlock * kBlock + (alignment < kBlock ? alignment : 0);
    if (next_ == 0 || begin > end_ || bytes > end_ - begin) return nullptr;
    next_ = begin + bytes;
    return reinterpret_cast<std::byte*>(begin);
  }

  /// Gives a view memory of its own; false without room.
  bool place(View& view) {
    if (!view.defined()) return true;
    const auto elements = (view.rows() - 1) * view.row_stride + view.cols();
    view.data =
        take(static_cast<std::uint64_t>(elements) * size_of(view.dtype), alignment_of(view.data));
    return view.defined();
  }

 private:
  std::uintptr_t next_, end_;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "to make an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "to record an event"); }
  void wait() { check(cudaEventSynchronize(event_), "a product that was timed"); }
  double microseconds_since(const Event& begin) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "to read a time");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  double microseconds = std::numeric_limits<double>::infinity();
};

}  // namespace

std::optional<ProductAlgorithm> CublasLtProducts::measure(const KernelCtx& ctx,
                                                          const ProductCall& call) const {
  PreparedProduct prepared = prepare(call);
  std::vector<Candidate> all;
  for (const cublasLtMatmulAlgo_t& algorithm : candidates(call.key, prepared)) {
    // The first launch of an algorithm also loads its code.
    if (queue(ctx, call, prepared, algorithm) == CUBLAS_STATUS_SUCCESS) all.push_back({algorithm});
  }
  if (all.empty()) return std::nullopt;
  Event begin, end;
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : all) {
      begin.record(stream_of(ctx));
      for (int i = 0; i < kRepeats; ++i) queue(ctx, call, prepared, candidate.algorithm);
      end.record(stream_of(ctx));
      end.wait();
      candidate.microseconds =
          std::min(candidate.microseconds, end.microseconds_since(begin) / kRepeats);
    }
  }
  const Candidate& fastest = *std::min_element(
      all.begin(), all.end(),
      [](const Candidate& a, const Candidate& b) { return a.microseconds < b.microseconds; });
  const Candidate& first = all.front();
  const Candidate& best = fastest.microseconds < kBetter * first.microseconds ? fastest : first;
  ProductAlgorithm result{.microseconds = best.microseconds};
  std::copy(std::begin(best.algorithm.data), std::end(best.algorithm.data), result.words.begin());
  return result;
}

TunedProducts CublasLtProducts::tune(const KernelCtx& ctx, std::span<const Matmul> products,
                                     const View& scratch, const std::filesystem::path& file) {
  measured_.load(file);
  if (scratch.defined()) fill_for_timing(ctx, scratch);
  TunedProducts report;
  for (const Matmul& product : products) {
    // What the step will have: a workspace of the arena, which begins at a multiple of 256 bytes.
    const View workspace{reinterpret_cast<void*>(kBlock),
                         DType::u8,
                         {static_cast<std::int64_t>(ctx.library_workspace_bytes)},
                         static_cast<std::int64_t>(ctx.library_workspace_bytes)};
    auto call = call_of(ctx, product, workspace);
    if (!call) {
      ++report.left_out;
      continue;
    }
    PreparedProduct prepared = prepare(*call);
    if (measured(call->key, prepared)) {
      ++report.known;
      continue;
    }
    ScratchBlocks blocks(scratch);
    call->workspace = blocks.take(call->key.workspace_bytes, kBlock);
    Matmul& mm = call->mm;
    const bool placed = call->workspace != nullptr && blocks.place(mm.a) && blocks.place(mm.b) &&
                        blocks.place(mm.c) && blocks.place(mm.bias);
    const auto best = placed ? measure(ctx, *call) : std::nullopt;
    if (!best) {
      ++report.left_out;
      continue;
    }
    measured_.put(to_string(call->key), *best);
    ++report.measured;
  }
  prepared_.clear();
  if (report.measured > 0) measured_.save(file);
  return report;
}

}  // namespace llmtrain::kernels::cuda
