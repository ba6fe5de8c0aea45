#include "kernels/quantize/quantizer.hpp"

#include <array>

#include "lib/base/require.hpp"

namespace llmtrain::kernels {

namespace {

constexpr BlockShape kTensor{}, kRow{1, 128}, kColumn{128, 1}, kSquare{128, 128};

// Blocks of rows are for products over a matrix's columns, blocks of columns for those over its
// rows, squares for either.
constexpr std::array kQuantizers = {
    Quantizer{"e4m3_current", kE4M3, kTensor},
    Quantizer{"e5m2_current", kE5M2, kTensor},
    Quantizer{"e4m3_delayed", kE4M3, kTensor, ScaleSource::history},
    Quantizer{"e5m2_delayed", kE5M2, kTensor, ScaleSource::history},
    Quantizer{"e4m3_1x128", kE4M3, kRow},
    Quantizer{"e4m3_128x1", kE4M3, kColumn},
    Quantizer{"e4m3_128x128", kE4M3, kSquare},
    Quantizer{"e4m3_1x128_pow2", kE4M3, kRow, ScaleSource::amax, true},
    Quantizer{"e4m3_128x1_pow2", kE4M3, kColumn, ScaleSource::amax, true},
    Quantizer{"e4m3_128x128_pow2", kE4M3, kSquare, ScaleSource::amax, true},
};

}  // namespace

std::span<const Quantizer> quantizers() { return kQuantizers; }

const Quantizer& find_quantizer(std::string_view name) {
  for (const Quantizer& quantizer : kQuantizers) {
    if (quantizer.name == name) return quantizer;
  }
  fail("no quantizer is called {}", name);
}

}  // namespace llmtrain::kernels
