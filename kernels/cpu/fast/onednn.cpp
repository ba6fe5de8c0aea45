#include "kernels/cpu/fast/onednn.hpp"

#include <compare>
#include <map>
#include <mutex>
#include <omp.h>
#include <optional>
#include <string_view>

#include <oneapi/dnnl/dnnl.hpp>

#include "lib/base/require.hpp"

// Written for oneDNN 2.6. In 3.x there is no matmul::desc: matmul::primitive_desc takes
// (engine, a, b[, bias], c, attributes); nothing else here changes.

namespace llmtrain::kernels::fast {

namespace {

/// Everything that a primitive is specialised for.
struct Key {
  std::int64_t m, n, k, lda, ldb, ldc;
  DType in, out;
  std::optional<DType> bias;
  bool transpose_a, transpose_b, accumulate;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Product {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

dnnl::memory::data_type library_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// rows x cols as stored row-major with `stride` between rows, or the transpose of such a matrix.
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t cols, std::int64_t stride,
                          bool transposed, DType dtype) {
  return {{rows, cols},
          library_type(dtype),
          transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

/// The step thread's OpenMP team size while oneDNN plans and runs.
class TeamSize {
 public:
  explicit TeamSize(int threads) : previous_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~TeamSize() { omp_set_num_threads(previous_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int previous_;
};

/// Primitives made so far. Generation meets a new shape at every length, hence the bound.
class Products {
 public:
  Products() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  Product find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = products_.find(key);
    if (known != products_.end()) return known->second;
    if (products_.size() >= kMaxProducts) products_.clear();
    return products_.emplace(key, make(key)).first->second;
  }
  dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kMaxProducts = 1024;

  Product make(const Key& key) {
    const auto a = matrix(key.m, key.k, key.lda, key.transpose_a, key.in);
    const auto b = matrix(key.k, key.n, key.ldb, key.transpose_b, key.in);
    const auto c = matrix(key.m, key.n, key.ldc, false, key.out);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum();
      attributes.set_post_ops(sum);
    }
    const auto operation =
        key.bias ? dnnl::matmul::desc(a, b, matrix(1, key.n, key.n, false, *key.bias), c)
                 : dnnl::matmul::desc(a, b, c);
    dnnl::matmul::primitive_desc description(operation, attributes, engine_);
    return {description, dnnl::matmul(description)};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::mutex mutex_;
  std::map<Key, Product> products_;
};

Products& products() {
  static Products all;
  return all;
}

/// Row stride as oneDNN wants it: at least a row, also where there is one row only.
std::int64_t leading(const View& view) { return std::max(view.row_stride, view.cols()); }

Key key_of(const Matmul& mm, int threads) {
  return {mm.m(),
          mm.n(),
          mm.k(),
          leading(mm.a),
          leading(mm.b),
          leading(mm.c),
          mm.a.dtype,
          mm.c.dtype,
          mm.bias.defined() ? std::optional(mm.bias.dtype) : std::nullopt,
          mm.transpose_a,
          mm.transpose_b,
          mm.accumulate,
          threads};
}

bool has_instructions(dnnl::cpu_isa wanted) {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

}  // namespace

bool onednn_multiplies_bf16() {
  static const bool multiplies = has_instructions(dnnl::cpu_isa::avx512_core_bf16);
  return multiplies;
}

bool onednn_matmul(const Matmul& mm, int threads, void* scratch, std::uint64_t scratch_bytes) {
  const TeamSize team(threads);
  try {
    const Product product = products().find(key_of(mm, threads));
    const auto& description = product.description;
    if (description.scratchpad_desc().get_size() > scratch_bytes) return false;
    // Its products by way of an older interface allocate beside the scratch memory.
    if (std::string_view(description.impl_info_str()).starts_with("gemm")) return false;
    const dnnl::engine& engine = products().engine();
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, {description.src_desc(), engine, mm.a.data}},
        {DNNL_ARG_WEIGHTS, {description.weights_desc(), engine, mm.b.data}},
        {DNNL_ARG_DST, {description.dst_desc(), engine, mm.c.data}},
        {DNNL_ARG_SCRATCHPAD, {description.scratchpad_desc(), engine, scratch}}};
    if (mm.bias.defined()) {
      arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(description.bias_desc(), engine, mm.bias.data));
    }
    product.primitive.execute(products().stream(), arguments);
    products().stream().wait();
  } catch (const dnnl::error& e) {
    fail<DeviceError>("oneDNN cannot multiply [{}, {}] by [{}, {}] in {}: {}", mm.m(), mm.k(),
                      mm.k(), mm.n(), to_string(mm.a.dtype), e.what());
  }
  return true;
}

}  // namespace llmtrain::kernels::fast
