#include "kernels/cuda/map.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/elementwise.hpp"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, int V>
struct DropoutPacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  Rows<T> y;
  const std::int64_t* row_id;
  std::int64_t cols;
  PhiloxKey key;
  std::uint64_t step;
  const StepScalars* scalars;  // null: `step` counts
  std::uint64_t threshold;     // the least word that is kept
  Wide<T> scale;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const auto first = static_cast<std::uint64_t>(row_id[row] * cols + col);
    const auto now = scalars == nullptr ? step : static_cast<std::uint64_t>(scalars->step);
    const auto from = load_pack<V>(x.row(row) + col);
    Pack<T, V> result;
    // Four elements share a block of the stream. A pack of four or more begins at a multiple of
    // four, because the columns of a row are a multiple of the pack.
    constexpr int kPart = V < 4 ? V : 4;
    for (int part = 0; part < V; part += kPart) {
      const PhiloxWords words = philox_block(key, now, first + part);
      for (int i = 0; i < kPart; ++i) {
        const std::uint32_t word = kPart == 4 ? words[i] : word_of(words, (first + part + i) % 4);
        const bool keep = word >= threshold;
        result.x[part + i] = keep ? narrow<T>(widen(from.x[part + i]) * scale) : T{};
      }
    }
    store_pack(y.row(row) + col, result);
  }
};

/// The least word whose unit_interval is >= p, 2^32 when there is none. unit_interval(word) >= p
/// says word + 0.5 >= p 2^32, of which every step is exact in double.
std::uint64_t threshold_of(double p) {
  return static_cast<std::uint64_t>(std::max(0.0, std::ceil(p * 0x1p32 - 0.5)));
}

void dropout(const KernelCtx& ctx, const Dropout& op, const View&) {
  MapShape shape(op.x, op.y);
  // Elements are numbered by row: never one long row.
  shape.rows = op.x.rows();
  shape.cols = op.x.cols();
  with_type(op.x.dtype, [&]<class T>() {
    constexpr int kFull = kPack<T>;
    const bool packed = shape.cols % kFull == 0 && rows_aligned(op.x, 16) && rows_aligned(op.y, 16);
    const auto run = [&]<int V>() {
      map(ctx, shape,
          DropoutPacks<T, V>{Rows<const T>(op.x), Rows<T>(op.y), op.row_id.as<std::int64_t>(),
                             shape.cols, op.key, op.step, op.scalars.as<StepScalars>(),
                             threshold_of(op.p), static_cast<Wide<T>>(1 / (1 - op.p))});
    };
    packed ? run.template operator()<kFull>() : run.template operator()<1>();
  });
}

}  // namespace

void add_dropout_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Dropout, dropout>()); }

}  // namespace llmtrain::kernels::cuda
