#pragma once
/// What a test may ask of the fake cuBLASLt in the emulated plugin: `fake_cublaslt`, by dlsym.

#include <cstdint>

struct FakeCublasLt {
  /// takes: all products that the library documents. refuses: none has an algorithm. fickle: the
  /// best algorithm is refused when it is to run. The environment variable LLMTRAIN_FAKE_CUBLASLT
  /// names the mode at the start.
  enum class Mode : std::uint8_t { takes, refuses, fickle };
  Mode mode = Mode::takes;
  /// Products that were queued.
  std::int64_t products = 0;
  std::int64_t heuristics = 0;
  /// Of the last product's algorithm, as in cublasLtReductionScheme_t.
  std::uint64_t reduction = 0;
};

using FakeCublasLtFunction = FakeCublasLt* (*)();
