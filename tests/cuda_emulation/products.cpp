// wgmma of the emulated GPU.
#include <algorithm>
#include <cstring>
#include <cuda_runtime.h>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "lib/tensor/dtype.hpp"
#include "tests/cuda_emulation/asynchronous.hpp"
#include "tests/cuda_emulation/block.hpp"

namespace simt {

namespace {

constexpr int kWarpgroup = 128, kStep = 16;

/// A product that is under way, as one thread sees it.
struct Product {
  WarpgroupProduct given;
  const std::uint32_t* a[4];  // registers of the four lanes that share this one's rows
  std::vector<float> before;  // empty where a product before it has the same sums
};

struct ThreadState {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  bool fenced = false;
};

struct WarpgroupState {
  /// Products in the order in which the first warp asked for them, and how many of them each warp
  /// has asked for.
  std::vector<WarpgroupProduct> asked;
  std::size_t done[4] = {};
};

struct State {
  std::map<std::size_t, ThreadState> threads;
  std::map<std::size_t, WarpgroupState> warpgroups;
  bool wrong = false, wrong_f16 = false, fails = false;  // fakes_wgmma()
};
State state;

float value_of(std::uint16_t bits, bool is_f16) {
  return is_f16 ? llmtrain::to_float(llmtrain::f16{bits})
                : __uint_as_float(std::uint32_t{bits} << 16);
}

/// A matrix descriptor of 128-byte swizzle.
class Matrix {
 public:
  Matrix(std::uint64_t descriptor, bool is_f16)
      : window_(shared_window()),
        is_f16_(is_f16),
        begin_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1) die("a matrix descriptor without 128-byte swizzle");
    if ((descriptor >> 49 & 7) != 0) die("a matrix descriptor with a base offset");
  }
  /// K-major: rows of 128 bytes, eight of them a pattern.
  float of_row(int row, int k) const {
    return at(static_cast<std::uint32_t>(row / 8) * stride_ +
              static_cast<std::uint32_t>(row % 8 * 128 + k * 2));
  }
  /// MN-major: a pattern is 64 elements for each of eight steps of summation.
  float of_column(int n, int k) const {
    return at(static_cast<std::uint32_t>(n / 64) * leading_ +
              static_cast<std::uint32_t>(n % 64 * 2 + k % 8 * 128) +
              static_cast<std::uint32_t>(k / 8) * stride_);
  }

 private:
  float at(std::uint32_t offset) const {
    const std::uint32_t address = swizzled(begin_ + offset);
    if (address + 2 > window_.bytes) die("a matrix behind the end of shared memory");
    std::uint16_t bits;
    std::memcpy(&bits, window_.data + address, 2);
    return value_of(bits, is_f16_);
  }
  SharedWindow window_;
  bool is_f16_;
  std::uint32_t begin_, leading_, stride_;
};

float half_of(std::uint32_t pair, int half, bool is_f16) {
  return value_of(static_cast<std::uint16_t>(pair >> (16 * half)), is_f16);
}

/// Reads the operands now and adds to the thread's sums.
void compute(Product& product) {
  const WarpgroupProduct& p = product.given;
  const int warp = static_cast<int>(thread_of_block()) % kWarpgroup / 32;
  const int g = lane() / 4, t = lane() % 4;
  const Matrix b(p.b_descriptor, p.is_f16);
  const Matrix of_a(p.a != nullptr ? p.b_descriptor : p.a_descriptor, p.is_f16);
  float a[2][kStep];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < kStep; ++k) {
      a[half][k] = p.a != nullptr ? half_of(product.a[k % 8 / 2][k / 8 * 2 + half], k % 2, p.is_f16)
                                  : of_a.of_row(16 * warp + 8 * half + g, k);
    }
  }
  const float factor = state.wrong || (p.is_f16 && state.wrong_f16) ? 1.5f : 1.0f;
  for (int n = 0; n < p.columns / 8; ++n) {
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * n + 2 * t + c;
      float of_b[kStep];
      for (int k = 0; k < kStep; ++k) {
        of_b[k] = p.b_transposed ? b.of_column(column, k) : b.of_row(column, k);
      }
      for (int half = 0; half < 2; ++half) {
        float& x = p.sums[4 * n + 2 * half + c];
        double sum = p.accumulate ? double(x) : 0.0;
        for (int k = 0; k < kStep; ++k) sum += double(factor * a[half][k]) * double(of_b[k]);
        x = static_cast<float>(sum);
      }
    }
  }
}

bool same(const WarpgroupProduct& x, const WarpgroupProduct& y) {
  return x.columns == y.columns && x.is_f16 == y.is_f16 && (x.a == nullptr) == (y.a == nullptr) &&
         (x.a != nullptr || x.a_descriptor == y.a_descriptor) && x.b_descriptor == y.b_descriptor &&
         x.accumulate == y.accumulate && x.b_transposed == y.b_transposed;
}

void poison(const WarpgroupProduct& product) {
  std::fill_n(product.sums, product.columns / 2, std::numeric_limits<float>::quiet_NaN());
}

bool pending(const ThreadState& thread, const float* sums) {
  const auto uses = [sums](const Product& p) { return p.given.sums == sums; };
  for (const auto& group : thread.groups) {
    if (std::any_of(group.begin(), group.end(), uses)) return true;
  }
  return std::any_of(thread.open.begin(), thread.open.end(), uses);
}

/// The next product that is under way with the same sums goes on from what they are now.
void hand_over(ThreadState& thread, const WarpgroupProduct& done) {
  const auto take = [&](std::vector<Product>& products) {
    for (Product& next : products) {
      if (next.given.sums != done.sums) continue;
      next.before.assign(done.sums, done.sums + done.columns / 2);
      poison(done);
      return true;
    }
    return false;
  };
  for (auto& group : thread.groups) {
    if (take(group)) return;
  }
  take(thread.open);
}

ThreadState& my_state() { return state.threads[thread_of_block()]; }

}  // namespace

void begin_products() {
  state = {.threads = {},
           .warpgroups = {},
           .wrong = fakes_wgmma("wrong"),
           .wrong_f16 = fakes_wgmma("wrong-fp16"),
           .fails = fakes_wgmma("fails") || fakes_wgmma("lost")};
}

void end_products() {
  for (const auto& [thread, mine] : state.threads) {
    if (!mine.open.empty() || !mine.groups.empty()) die("a thread ended before its products");
  }
  for (const auto& [number, group] : state.warpgroups) {
    for (const std::size_t done : group.done) {
      if (done != group.asked.size()) die("wgmma by some warps of a warpgroup");
    }
  }
}

void multiply(const WarpgroupProduct& given) {
  ThreadState& mine = my_state();
  if (!mine.fenced) die("wgmma without a wgmma.fence behind what wrote its registers");
  Product product{.given = given, .a = {}, .before = {}};
  // Registers of A are read as late as shared memory is.
  const Lanes& lanes = exchange(~0u, &given.a, sizeof given.a);
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&product.a[i], lanes.bytes[static_cast<std::size_t>(lane() / 4 * 4 + i)].data(),
                sizeof product.a[i]);
  }
  const std::size_t thread = thread_of_block();
  if (lane() == 0) {
    WarpgroupState& group = state.warpgroups[thread / kWarpgroup];
    std::size_t& done = group.done[thread % kWarpgroup / 32];
    if (done == group.asked.size()) group.asked.push_back(given);
    if (!same(group.asked[done++], given)) die("the warps of a warpgroup ask for other products");
  }
  if (!pending(mine, given.sums)) {
    product.before.assign(given.sums, given.sums + given.columns / 2);
    poison(given);
  }
  mine.open.push_back(std::move(product));
}

void fence_products() {
  exchange(~0u, "", 1);
  my_state().fenced = true;
}

void commit_products() {
  ThreadState& mine = my_state();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void wait_for_products(int groups_left) {
  exchange(~0u, "", 1);  // all lanes are here, and their registers as they will be read
  if (state.fails) fail_device();
  ThreadState& mine = my_state();
  while (static_cast<int>(mine.groups.size()) > groups_left) {
    std::vector<Product> group = std::move(mine.groups.front());
    mine.groups.pop_front();
    for (std::size_t i = 0; i < group.size(); ++i) {
      Product& product = group[i];
      if (!product.before.empty()) {
        std::copy(product.before.begin(), product.before.end(), product.given.sums);
      }
      compute(product);
      const bool last =
          std::none_of(group.begin() + static_cast<std::ptrdiff_t>(i) + 1, group.end(),
                       [&](const Product& p) { return p.given.sums == product.given.sums; });
      if (last) hand_over(mine, product.given);
    }
  }
  // Registers may be used now: the next products need a fence.
  mine.fenced = false;
  exchange(~0u, "", 1);
}

}  // namespace simt
