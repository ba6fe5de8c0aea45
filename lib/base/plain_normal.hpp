#pragma once
/// Normal numbers by additions, products, quotients and roots alone, which every device rounds
/// alike: what is made of words on one has the bits of any other. All is constexpr, so that device
/// code has the very same operations.

#include <bit>
#include <cmath>
#include <cstdint>

#include "lib/base/philox.hpp"

namespace llmtrain {

/// A polynomial of x, the coefficient of its highest power first.
template <class... Rest>
[[gnu::always_inline]] constexpr double horner(double x, double first, Rest... rest) {
  double sum = first;
  ((sum = sum * x + rest), ...);
  return sum;
}

/// The standard normal quantile of p has three parts (Wichura, algorithm AS 241): of q = p - 0.5
/// where its size is at most kCentralQuantile, beyond of r = sqrt(-log(min(p, 1 - p))) up to
/// kMiddleQuantile and from there on, which no p of unit_interval() reaches.
inline constexpr double kCentralQuantile = 0.425;
inline constexpr double kMiddleQuantile = 5.0;

[[gnu::always_inline]] constexpr double central_quantile(double q) {
  const double x = 0.180625 - q * q;
  return q * (horner(x, 2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                     45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                     133.14166789178437745, 3.387132872796366608) /
              horner(x, 5226.495278852545925, 28729.085735721942674, 39307.89580009271061,
                     21213.794301586595867, 5394.1960214247511077, 687.1870074920579083,
                     42.313330701600911252, 1.0));
}

[[gnu::always_inline]] constexpr double middle_quantile(double r) {
  const double x = r - 1.6;
  return horner(x, 7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177,
                1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055,
                4.6303378461565452959, 1.42343711074968357734) /
         horner(x, 1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966,
                0.14810397642748007459, 0.68976733498510000455, 1.6763848301838038494,
                2.05319162663775882187, 1.0);
}

[[gnu::always_inline]] constexpr double tail_quantile(double r) {
  const double x = r - 5.0;
  return horner(x, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386,
                0.026532189526576123093, 0.29656057182850489123, 1.7848265399172913358,
                5.4637849111641143699, 6.6579046435011037772) /
         horner(x, 2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5,
                7.868691311456132591e-4, 0.0148753612908506148525, 0.13692988092273580531,
                0.59983220655588793769, 1.0);
}

/// log 2 in two parts, of which the first has zeros enough to be exact times a whole number of 20
/// bits.
inline constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;

/// log x, where x is positive and not subnormal; to about 1e-16 of it or of log 2.
constexpr double plain_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 artanh s, of which s^23 would be the next term.
  const double s = (m - 1) / (m + 1), z = s * s;
  const double rest = z * horner(z, 1 / 21.0, 1 / 19.0, 1 / 17.0, 1 / 15.0, 1 / 13.0, 1 / 11.0,
                                 1 / 9.0, 1 / 7.0, 1 / 5.0, 1 / 3.0);
  const auto e = static_cast<double>(exponent);
  return e * kLog2High + (2 * (s + s * rest) + e * kLog2Low);
}

/// exp x, where |x| < 700; to about 1e-15 of it.
constexpr double plain_exp(double x) {
  const auto exponent =
      static_cast<std::int64_t>(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));  // x / log 2
  const auto e = static_cast<double>(exponent);
  const double r = (x - e * kLog2High) - e * kLog2Low;
  double sum = 1;
  for (int k = 14; k > 0; --k) sum = 1 + sum * (r / k);
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

/// The standard normal number of a word: normal_quantile(unit_interval(word)) but for the last
/// bits, which there are those of a library's logarithm.
constexpr double plain_normal(std::uint32_t word) {
  const double q = unit_interval(word) - 0.5;
  const double size = q < 0 ? -q : q;
  if (size <= kCentralQuantile) return central_quantile(q);
  const double x = middle_quantile(std::sqrt(-plain_log(0.5 - size)));
  return q < 0 ? -x : x;
}

}  // namespace llmtrain
