// Which algorithm is fastest: by trial, in memory that nothing else uses, because products that
// accumulate cannot be repeated on the step's own.
#include <algorithm>
#include <limits>
#include <set>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/matmul_plain.hpp"
#include "kernels/cuda/timing_event.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/error.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Each candidate is timed kRounds times over kRepeats launches; its least time counts. Rounds go
/// over all candidates, so that a change of clocks meets them all.
constexpr int kRounds = 3;
constexpr int kRepeats = 5;
/// The library's own first choice stays unless another takes less than this share of its time:
/// noise does not decide.
constexpr double kBetter = 0.98;

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  double microseconds = std::numeric_limits<double>::infinity();
  bool runs = true;
};

/// The call in scratch memory, whose operands are made anew: products that accumulate change
/// theirs. False without room.
bool place_in(ProductCall& call, const View& scratch, const KernelCtx& ctx) {
  const ProductScratch at(call.mm, ctx.library_workspace_bytes);
  if (!scratch.defined() || scratch.bytes() < at.total_bytes) return false;
  auto* const begin = scratch.as<std::byte>();
  call.workspace = call.key.workspace_bytes > 0 ? begin + at.workspace : nullptr;
  call.mm.a.data = begin + at.a;
  call.mm.b.data = begin + at.b;
  call.mm.c.data = begin + at.c;
  if (call.mm.bias.defined()) call.mm.bias.data = begin + at.bias;
  if (call.mm.pre.defined()) call.mm.pre.data = begin + at.pre;
  const auto bytes = static_cast<std::int64_t>(at.total_bytes);
  fill_for_timing(ctx, {begin, DType::u8, {bytes}, bytes});
  return true;
}

/// Adds what was measured to the file, in which what others wrote meanwhile stays.
void keep(AlgorithmCache file, const std::map<std::string, ProductAlgorithm>& measured,
          const std::filesystem::path& path) {
  try {
    file.load(path);
    for (const auto& [product, algorithm] : measured) {
      if (file.find(product) == nullptr) file.put(product, algorithm);
    }
    if (path.has_parent_path()) create_directories_durably(path.parent_path());
    file.save(path);
  } catch (const StorageError& error) {
    log::warning("measured products are not kept for other runs: {}", error.what());
  }
}

}  // namespace

std::optional<ProductCall> CublasLtProducts::call_of_step(const KernelCtx& ctx, const Matmul& mm) {
  // A workspace of the arena begins at a multiple of this.
  constexpr std::uintptr_t kSomewhere = 256;
  const auto bytes = static_cast<std::int64_t>(ctx.library_workspace_bytes);
  return call_of(ctx, mm, {reinterpret_cast<void*>(kSomewhere), DType::u8, {bytes}, bytes});
}

std::optional<ProductAlgorithm> CublasLtProducts::measure(const KernelCtx& ctx, ProductCall call,
                                                          const View& scratch) const {
  if (!place_in(call, scratch, ctx)) return std::nullopt;
  PreparedProduct prepared(call);
  const auto runs = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const cublasStatus_t status = queue(ctx, call, prepared, algorithm);
    if (is_refusal(status)) return false;
    check_library(status, "a product that was timed");
    return true;
  };
  std::vector<Candidate> all;
  for (const cublasLtMatmulAlgo_t& algorithm : candidates(call.key, prepared)) {
    // The first launch of an algorithm also loads its code.
    if (runs(algorithm)) all.push_back({algorithm});
  }
  TimingEvent begin, end;
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : all) {
      begin.record(stream_of(ctx));
      for (int i = 0; i < kRepeats && candidate.runs; ++i) {
        candidate.runs = runs(candidate.algorithm);
      }
      end.record(stream_of(ctx));
      end.wait();
      candidate.microseconds =
          std::min(candidate.microseconds, end.microseconds_since(begin) / kRepeats);
    }
  }
  std::erase_if(all, [](const Candidate& candidate) { return !candidate.runs; });
  if (all.empty()) return std::nullopt;
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
                                     const View& scratch, const ProductMemory& memory) {
  AlgorithmCache kept = empty_cache(), known = empty_cache();
  kept.read(memory.choices);
  if (!products.empty()) known.load(memory.file);
  choices_ = kept;
  TunedProducts report;
  std::set<std::string> met;
  std::map<std::string, ProductAlgorithm> measured;
  for (const Matmul& product : products) {
    const auto call = call_of_step(ctx, product);
    if (!call) {
      ++report.left_out;
      continue;
    }
    const std::string name = to_string(call->key);
    if (!met.insert(name).second) continue;
    PreparedProduct prepared(*call);
    if (remembered(kept, call->key, prepared)) {
      ++report.kept;
    } else if (remembered(known, call->key, prepared)) {
      ++report.known;
      choices_.put(name, *known.find(name));
    } else if (const auto best = measure(ctx, *call, scratch)) {
      ++report.measured;
      measured.emplace(name, *best);
      choices_.put(name, *best);
    } else {
      ++report.left_out;
    }
  }
  prepared_.clear();
  if (!measured.empty()) keep(empty_cache(), measured, memory.file);
  report.choices = choices_.text();
  return report;
}

}  // namespace llmtrain::kernels::cuda
