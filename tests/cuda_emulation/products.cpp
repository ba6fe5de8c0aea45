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

constexpr int kWarpgroup = 128, kStep = 16, kMaxColumns = 256;
constexpr int kOwnColumns = kMaxColumns / 4;  // of one thread

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

inline float value_of(std::uint16_t bits, bool is_f16) {
  return is_f16 ? llmtrain::to_float(llmtrain::f16{bits})
                : llmtrain::to_float(llmtrain::bf16{bits});
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
  /// K-major: rows of 128 bytes, eight of them a pattern. Step k of the row goes to to[k * apart].
  void read_row(int row, double* to, int apart) const {
    constexpr int kChunk = 8;  // what swizzle leaves together
    for (int k = 0; k < kStep; k += kChunk) {
      const std::byte* const from = at(static_cast<std::uint32_t>(row / 8) * stride_ +
                                           static_cast<std::uint32_t>(row % 8 * 128 + k * 2),
                                       2 * kChunk);
      for (int i = 0; i < kChunk; ++i) to[(k + i) * apart] = number(from + 2 * i);
    }
  }
  /// MN-major: a pattern is 64 elements for each of eight steps of summation. Columns n, which is
  /// even, and n + 1 go side by side.
  void read_two_columns(int n, double* to, int apart) const {
    for (int k = 0; k < kStep; ++k) {
      const std::byte* const from = at(static_cast<std::uint32_t>(n / 64) * leading_ +
                                           static_cast<std::uint32_t>(n % 64 * 2 + k % 8 * 128) +
                                           static_cast<std::uint32_t>(k / 8) * stride_,
                                       4);
      for (int i = 0; i < 2; ++i) to[k * apart + i] = number(from + 2 * i);
    }
  }

 private:
  const std::byte* at(std::uint32_t offset, std::size_t bytes) const {
    const std::uint32_t address = swizzled(begin_ + offset);
    if (address + bytes > window_.bytes) die("a matrix behind the end of shared memory");
    return window_.data + address;
  }
  double number(const std::byte* from) const {
    std::uint16_t bits;
    std::memcpy(&bits, from, 2);
    return value_of(bits, is_f16_);
  }
  SharedWindow window_;
  bool is_f16_;
  std::uint32_t begin_, leading_, stride_;
};

/// What one thread has of a product: two rows, and of every eight columns two.
struct Operands {
  double a[2][kStep];
  double b[kStep][kOwnColumns];
  double sums[2][kOwnColumns];
};

/// Each sum in the order of its steps.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void accumulate(Operands& o, int columns) {
  for (int half = 0; half < 2; ++half) {
    double* const sums = o.sums[half];
    for (int k = 0; k < kStep; ++k) {
      const double a = o.a[half][k];
      const double* const b = o.b[k];
#pragma omp simd
      for (int c = 0; c < columns; ++c) sums[c] += a * b[c];
    }
  }
}

void read_operands(const Product& product, Operands& o) {
  const WarpgroupProduct& p = product.given;
  const int warp = static_cast<int>(thread_of_block()) % kWarpgroup / 32;
  const int g = lane() / 4, t = lane() % 4;
  const Matrix b(p.b_descriptor, p.is_f16);
  for (int half = 0; half < 2; ++half) {
    if (p.a == nullptr) {
      Matrix(p.a_descriptor, p.is_f16).read_row(16 * warp + 8 * half + g, o.a[half], 1);
      continue;
    }
    for (int k = 0; k < kStep; ++k) {
      const std::uint32_t pair = product.a[k % 8 / 2][k / 8 * 2 + half];
      o.a[half][k] = value_of(static_cast<std::uint16_t>(pair >> (16 * (k % 2))), p.is_f16);
    }
  }
  for (int n = 0; n < p.columns / 8; ++n) {
    const int column = 8 * n + 2 * t;
    if (p.b_transposed) {
      b.read_two_columns(column, &o.b[0][2 * n], kOwnColumns);
    } else {
      for (int c = 0; c < 2; ++c) b.read_row(column + c, &o.b[0][2 * n + c], kOwnColumns);
    }
  }
}

/// Reads the operands now and adds to the thread's sums.
void compute(Product& product) {
  const WarpgroupProduct& p = product.given;
  if (p.columns > kMaxColumns) die("wgmma of more columns than there are");
  Operands o;
  read_operands(product, o);
  if (state.wrong || (p.is_f16 && state.wrong_f16)) {
    for (auto& row : o.a) {
      for (double& x : row) x *= 1.5;
    }
  }
  // Of the sums, halves of a row alternate by pairs.
  const auto place = [](int half, int c) { return 4 * (c / 2) + 2 * half + c % 2; };
  const int columns = p.columns / 4;
  for (int half = 0; half < 2; ++half) {
    for (int c = 0; c < columns; ++c) {
      o.sums[half][c] = p.accumulate ? double(p.sums[place(half, c)]) : 0.0;
    }
  }
  accumulate(o, columns);
  for (int half = 0; half < 2; ++half) {
    for (int c = 0; c < columns; ++c) p.sums[place(half, c)] = static_cast<float>(o.sums[half][c]);
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
