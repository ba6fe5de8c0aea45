#include "lib/base/philox.hpp"

#include <cmath>
#include <string>

#include "lib/base/hash.hpp"

namespace llmtrain {

PhiloxKey philox_key(std::uint64_t seed, std::string_view purpose, std::string_view name) {
  Hasher128 hasher;
  hasher.update_value(seed);
  hasher.update(purpose);
  hasher.update(std::string_view("\0", 1));
  hasher.update(name);
  const std::uint64_t h = hasher.digest().low;
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

namespace {
// Ratio of two polynomials of degree 7, highest coefficient first.
double ratio(double x, const double (&a)[8], const double (&b)[8]) {
  double p = a[0];
  double q = b[0];
  for (int i = 1; i < 8; ++i) {
    p = p * x + a[i];
    q = q * x + b[i];
  }
  return p / q;
}
}  // namespace

double normal_quantile(double p) {
  static constexpr double kCentralA[8] = {
      2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
      13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
  static constexpr double kCentralB[8] = {
      5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
      5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  static constexpr double kMiddleA[8] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                                         0.24178072517745061177,   1.27045825245236838258,
                                         3.64784832476320460504,   5.7694972214606914055,
                                         4.6303378461565452959,    1.42343711074968357734};
  static constexpr double kMiddleB[8] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                         0.0151986665636164571966,  0.14810397642748007459,
                                         0.68976733498510000455,    1.6763848301838038494,
                                         2.05319162663775882187,    1.0};
  static constexpr double kTailA[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                       0.0012426609473880784386,  0.026532189526576123093,
                                       0.29656057182850489123,    1.7848265399172913358,
                                       5.4637849111641143699,     6.6579046435011037772};
  static constexpr double kTailB[8] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                                       1.8463183175100546818e-5,   7.868691311456132591e-4,
                                       0.0148753612908506148525,   0.13692988092273580531,
                                       0.59983220655588793769,     1.0};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    return q * ratio(0.180625 - q * q, kCentralA, kCentralB);
  }
  const double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  const double x = r <= 5.0 ? ratio(r - 1.6, kMiddleA, kMiddleB) : ratio(r - 5.0, kTailA, kTailB);
  return q < 0 ? -x : x;
}

std::uint64_t philox_below(PhiloxKey key, std::uint64_t step, std::uint64_t index,
                           std::uint64_t bound) {
  const PhiloxWords w = philox_block(key, step, index * 4);
  const std::uint64_t word = (std::uint64_t{w[1]} << 32) | w[0];
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{word} * bound) >> 64);
}

}  // namespace llmtrain
