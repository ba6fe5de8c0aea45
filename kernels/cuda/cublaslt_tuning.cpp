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

/// A burst shows little: at its clocks of a moment ago a GPU is faster than at those to which its
/// limit of power brings it, and not with every algorithm alike (of one product of Qwen2.5-1.5B, on
/// an H200, the fastest in bursts, 804 TFLOP/s, kept 633, the third, 797, kept 721). So bursts
/// choose who goes on, and rounds over those, as long as a step's work is, decide.
constexpr int kBursts = 2;
constexpr int kBurstLaunches = 3;
/// Who goes on: within this factor of the fastest, so many at most, and the library's first choice.
constexpr double kInReach = 1.2;
constexpr std::size_t kFinalists = 5;
/// Rounds go over all of them, so that a change of clocks meets them all; the first ones only heat.
constexpr int kHeatingRounds = 2;
constexpr int kRounds = 4;
#ifdef LLMTRAIN_CUDA_EMULATION
constexpr double kRoundMicroseconds = 1;
#else
constexpr double kRoundMicroseconds = 10e3;
#endif
constexpr double kMostLaunches = 200;
/// The library's own first choice stays unless another takes less than this share of its time:
/// noise does not decide.
constexpr double kBetter = 0.99;

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  double microseconds = std::numeric_limits<double>::infinity();
  bool runs = true;
  bool is_first = false;  // of the library's choices
  int launches = 0;       // in a round
};

/// Those whose times let them hope, the fastest first.
std::vector<Candidate> finalists(std::vector<Candidate> all) {
  std::erase_if(all, [](const Candidate& candidate) { return !candidate.runs; });
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.microseconds < b.microseconds;
  });
  std::vector<Candidate> chosen;
  for (const Candidate& candidate : all) {
    const bool hopes =
        chosen.size() < kFinalists && candidate.microseconds <= kInReach * all.front().microseconds;
    if (hopes || candidate.is_first) chosen.push_back(candidate);
  }
  return chosen;
}

/// The fastest, or the library's first choice where that is hardly slower.
ProductAlgorithm choose(const std::vector<Candidate>& all) {
  const Candidate* best = &*std::min_element(
      all.begin(), all.end(),
      [](const Candidate& a, const Candidate& b) { return a.microseconds < b.microseconds; });
  for (const Candidate& candidate : all) {
    if (candidate.is_first && best->microseconds >= kBetter * candidate.microseconds) {
      best = &candidate;
    }
  }
  ProductAlgorithm result{.microseconds = best->microseconds};
  std::copy(std::begin(best->algorithm.data), std::end(best->algorithm.data), result.words.begin());
  return result;
}

/// The call in scratch memory, whose operands are made anew: products that accumulate change
/// theirs. False without room.
bool place_in(ProductCall& call, const Product& product, const View& scratch,
              const KernelCtx& ctx) {
  const ProductScratch at(product, ctx.library_workspace_bytes);
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
  if (product.codes) {
    const auto codes = static_cast<std::int64_t>(at.c - at.a);
    fill_codes_for_timing(ctx, {begin + at.a, DType::u8, {codes}, codes});
    call.a_scale_inv = reinterpret_cast<const float*>(begin + at.scales);
    call.b_scale_inv = call.a_scale_inv + 64;
  }
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

std::optional<ProductCall> CublasLtProducts::call_of_step(const KernelCtx& ctx,
                                                          const Product& product) {
  // A workspace of the arena begins at a multiple of this.
  constexpr std::uintptr_t kSomewhere = 256;
  const auto bytes = static_cast<std::int64_t>(ctx.library_workspace_bytes);
  return call_of(ctx, product, {reinterpret_cast<void*>(kSomewhere), DType::u8, {bytes}, bytes});
}

std::vector<cublasLtMatmulAlgo_t> CublasLtProducts::variants(const ProductKey& key,
                                                             PreparedProduct& prepared) const {
  std::vector<cublasLtMatmulAlgo_t> all = candidates(key, prepared);
  const std::size_t proposed = all.size();
  for (std::size_t i = 0; i < proposed; ++i) {
    cublasLtMatmulAlgo_t other = all[i];
    std::uint32_t swizzle = 0;
    std::size_t bytes = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&other, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle,
                                             sizeof(swizzle), &bytes) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    swizzle = swizzle == 0 ? 1 : 0;
    if (cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle,
                                             sizeof(swizzle)) == CUBLAS_STATUS_SUCCESS &&
        fits(other, prepared, key)) {
      all.push_back(other);
    }
  }
  return all;
}

std::optional<ProductAlgorithm> CublasLtProducts::measure(const KernelCtx& ctx,
                                                          const Product& product, ProductCall call,
                                                          const View& scratch) const {
  if (!place_in(call, product, scratch, ctx)) return std::nullopt;
  PreparedProduct prepared(call);
  const auto runs = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const cublasStatus_t status = queue(ctx, call, prepared, algorithm);
    if (is_refusal(status)) return false;
    check_library(status, "a product that was timed");
    return true;
  };
  TimingEvent begin, end;
  const auto time_of = [&](Candidate& candidate, int launches) {
    begin.record(stream_of(ctx));
    for (int i = 0; i < launches && candidate.runs; ++i) {
      candidate.runs = runs(candidate.algorithm);
    }
    end.record(stream_of(ctx));
    end.wait();
    return end.microseconds_since(begin) / launches;
  };
  std::vector<Candidate> all;
  for (const cublasLtMatmulAlgo_t& algorithm : variants(call.key, prepared)) {
    // The first launch of an algorithm also loads its code.
    if (runs(algorithm)) all.push_back({.algorithm = algorithm, .is_first = all.empty()});
  }
  for (int burst = 0; burst < kBursts; ++burst) {
    for (Candidate& candidate : all) {
      candidate.microseconds = std::min(candidate.microseconds, time_of(candidate, kBurstLaunches));
    }
  }
  all = finalists(std::move(all));
  for (Candidate& candidate : all) {
    const double launches = kRoundMicroseconds / std::max(1.0, candidate.microseconds);
    candidate.launches = static_cast<int>(std::clamp(launches, 1.0, kMostLaunches));
    candidate.microseconds = 0;
  }
  for (int round = -kHeatingRounds; round < kRounds; ++round) {
    for (Candidate& candidate : all) {
      const double microseconds = time_of(candidate, candidate.launches);
      if (round >= 0) candidate.microseconds += microseconds / kRounds;
    }
  }
  std::erase_if(all, [](const Candidate& candidate) { return !candidate.runs; });
  if (all.empty()) return std::nullopt;
  return choose(all);
}

TunedProducts CublasLtProducts::tune(const KernelCtx& ctx, std::span<const Product> products,
                                     const View& scratch, const ProductMemory& memory) {
  AlgorithmCache kept = empty_cache(), known = empty_cache();
  kept.read(memory.choices);
  if (!products.empty()) known.load(memory.file);
  choices_ = kept;
  TunedProducts report;
  std::set<std::string> met;
  std::map<std::string, ProductAlgorithm> measured;
  for (const Product& product : products) {
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
    } else if (const auto best =
                   memory.stop() ? std::nullopt : measure(ctx, product, *call, scratch)) {
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
