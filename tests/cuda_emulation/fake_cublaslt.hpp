#pragma once
/// What a test may ask of the fake cuBLASLt in the emulated plugin: `fake_cublaslt`, by dlsym.

#include <cstdint>

struct FakeCublasLt {
  /// takes: all products that the library documents. refuses: none has an algorithm. fickle: the
  /// best algorithms are refused when they are to run. breaks: what is to run fails. The
  /// environment variable LLMTRAIN_FAKE_CUBLASLT names the mode at the start,
  /// LLMTRAIN_FAKE_CUBLASLT_VERSION another version (130200).
  enum class Mode : std::uint8_t { takes, refuses, fickle, breaks };
  Mode mode = Mode::takes;
  /// The slowest algorithm is the fastest, and so on; LLMTRAIN_FAKE_CUBLASLT_TIMES=reversed.
  bool reversed_times = false;
  /// With fickle: so many products are taken before one is refused.
  std::int64_t patience = 0;
  /// Of the operands that the last product read.
  std::uint64_t operands_hash = 0;
  /// Products that were queued.
  std::int64_t products = 0;
  std::int64_t heuristics = 0;
  /// Of the last product's algorithm, as in cublasLtReductionScheme_t.
  std::uint64_t reduction = 0;
  /// Of the last product, as in cublasLtEpilogue_t.
  std::uint32_t epilogue = 0;
  /// Of the last product, of codes alone.
  bool fast_sums = false;
  /// Products of codes that were queued.
  std::int64_t products_of_codes = 0;
};

using FakeCublasLtFunction = FakeCublasLt* (*)();
