#include "kernels/operands.hpp"

#include <algorithm>
#include <string>

#include "lib/base/require.hpp"

namespace llmtrain::kernels {

namespace {
std::string list_of(std::initializer_list<DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) {
    if (!text.empty()) text += " or ";
    text += to_string(dtype);
  }
  return text;
}
}  // namespace

void Operands::present(std::string_view name, const View& view,
                       std::initializer_list<DType> dtypes) const {
  require(view.defined(), "{}: operand {} is absent", kernel_, name);
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    fail("{}: {} is {}, expected {}", kernel_, name, to_string(view.dtype), list_of(dtypes));
  }
}

void Operands::strided(std::string_view name, const View& view, std::int64_t rows,
                       std::int64_t cols, std::initializer_list<DType> dtypes) const {
  present(name, view, dtypes);
  if (view.rows() != rows || view.cols() != cols) {
    fail("{}: {} is {}, expected {} rows of {} columns", kernel_, name, to_string(view.shape), rows,
         cols);
  }
  require(rows <= 1 || view.row_stride >= cols, "{}: rows of {} overlap: {} columns, {} apart",
          kernel_, name, cols, view.row_stride);
}

void Operands::dense(std::string_view name, const View& view, std::int64_t numel,
                     std::initializer_list<DType> dtypes) const {
  present(name, view, dtypes);
  if (view.numel() != numel) {
    fail("{}: {} is {}, expected {} elements", kernel_, name, to_string(view.shape), numel);
  }
  require(view.contiguous(), "{}: {} must be contiguous, but its rows of {} lie {} apart", kernel_,
          name, view.cols(), view.row_stride);
}

void Operands::absent(std::string_view name, const View& view) const {
  require(!view.defined(), "{}: operand {} has no meaning here and must be absent", kernel_, name);
}

void Operands::distinct(std::string_view output_name, const View& output,
                        std::string_view input_name, const View& input) const {
  require(output.data != input.data || output.numel() == 0 || input.numel() == 0,
          "{}: {} must not be {}", kernel_, output_name, input_name);
}

void Operands::expects(bool condition, std::string_view expected) const {
  require(condition, "{} expects {}", kernel_, expected);
}

Cost memory_cost(std::initializer_list<View> read, std::initializer_list<View> written) {
  Cost cost;
  for (const View& view : read) {
    if (view.defined()) cost.bytes_read += static_cast<double>(view.bytes());
  }
  for (const View& view : written) {
    if (view.defined()) cost.bytes_written += static_cast<double>(view.bytes());
  }
  return cost;
}

}  // namespace llmtrain::kernels
