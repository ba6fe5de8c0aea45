#include "lib/comm/ordered_sum.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

// Elements that are joined at a time: the block of every term stays in the first cache.
constexpr std::int64_t kBlock = 256;

template <class T, ReduceOp op>
T join(T a, T b) {
  if constexpr (op == ReduceOp::sum) {
    return a + b;
  } else {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
    }
    return op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
  }
}

inline float widen(bf16 x) { return to_float(x); }
inline float widen(f16 x) { return to_float(x); }
template <class T>
T widen(T x) {
  return x;
}
inline void narrow(float x, bf16& to) { to = to_bf16(x); }
inline void narrow(float x, f16& to) { to = to_f16(x); }
template <class T>
void narrow(T x, T& to) {
  to = x;
}

template <class Stored, ReduceOp op>
void reduce(std::span<const std::byte* const> terms, std::byte* out, std::int64_t count) {
  using T = decltype(widen(Stored{}));
  std::vector<std::array<T, kBlock>> rows(terms.size());
  auto* result = reinterpret_cast<Stored*>(out);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto n = static_cast<std::size_t>(std::min(kBlock, count - begin));
    for (std::size_t t = 0; t < terms.size(); ++t) {
      const auto* term = reinterpret_cast<const Stored*>(terms[t]) + begin;
      for (std::size_t i = 0; i < n; ++i) rows[t][i] = widen(term[i]);
    }
    for (std::size_t left = terms.size(); left > 1; left = (left + 1) / 2) {
      for (std::size_t pair = 0; pair < left / 2; ++pair) {
        const auto& a = rows[2 * pair];
        const auto& b = rows[2 * pair + 1];
        auto& sum = rows[pair];
        for (std::size_t i = 0; i < n; ++i) sum[i] = join<T, op>(a[i], b[i]);
      }
      if (left % 2 == 1) rows[left / 2] = rows[left - 1];
    }
    for (std::size_t i = 0; i < n; ++i)
      narrow(rows[0][i], result[begin + static_cast<std::int64_t>(i)]);
  }
}

template <class Stored>
void reduce_by(ReduceOp op, std::span<const std::byte* const> terms, std::byte* out,
               std::int64_t count) {
  switch (op) {
    case ReduceOp::sum:
      return reduce<Stored, ReduceOp::sum>(terms, out, count);
    case ReduceOp::max:
      return reduce<Stored, ReduceOp::max>(terms, out, count);
    case ReduceOp::min:
      return reduce<Stored, ReduceOp::min>(terms, out, count);
  }
}

}  // namespace

void reduce_in_order(std::span<const std::byte* const> terms, std::byte* out, std::int64_t count,
                     DType dtype, ReduceOp op) {
  require(!terms.empty(), "a reduction of nothing");
  switch (dtype) {
    case DType::f64:
      return reduce_by<double>(op, terms, out, count);
    case DType::f32:
      return reduce_by<float>(op, terms, out, count);
    case DType::bf16:
      return reduce_by<bf16>(op, terms, out, count);
    case DType::f16:
      return reduce_by<f16>(op, terms, out, count);
    case DType::i64:
      return reduce_by<std::int64_t>(op, terms, out, count);
    case DType::i32:
      return reduce_by<std::int32_t>(op, terms, out, count);
    default:
      fail("no reduction of {}", to_string(dtype));
  }
}

}  // namespace llmtrain
