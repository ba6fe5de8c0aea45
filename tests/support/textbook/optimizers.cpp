// What updates of a tensor need from the other ranks of tp.
#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

namespace {

constexpr double kSumBytes = 8;  // sums over many elements

}  // namespace

// Muon (K. Jordan, 2024) makes the mean gradient of a matrix orthogonal, of unit length before, and
// those that run Adam in a subspace of it (arXiv 2403.03507, 2407.08296, 2410.16103) find that of a
// whole one. Of fewer key/value heads than ranks each rank sends its part, though some have the
// same.
void TextbookRank::orthogonal_steps(const TextbookTensor& tensor) {
  if (tensor.kind != TensorKind::matrix || !(tensor.has_rows() || tensor.has_columns())) return;
  const bool is_muon = run_.options.optimizer->name().name == "muon";
  const double parts = tp_ * tensor.elements() / owners(tensor.of_experts);
  all_gather("tp", tp_, parts * (is_muon ? bytes_ : wide_));
  if (!is_muon) return;
  all_reduce("tp", tp_, tensor.matrices() * kSumBytes / owners(tensor.of_experts));
}

// Adafactor (arXiv 1804.04235): a mean square for each row of a matrix and for each column, and of
// the rows their mean; those of a step and of the parameter, by which it is scaled. CAME (arXiv
// 2307.02047) has both means of a second matrix, too, and no parameter's. SM3 (arXiv 1901.11150)
// has a maximum for each row and each column.
void TextbookRank::factored_moments(const TextbookTensor& tensor) {
  const std::string_view name = run_.options.optimizer->name().name;
  const bool is_matrix = tensor.here.size() > 1;
  const double matrices = tensor.matrices() / owners(tensor.of_experts);
  const double each_row =
      is_matrix && tensor.has_columns() ? matrices * static_cast<double>(tensor.rows()) : 0;
  const double each_column =
      tensor.has_rows() ? matrices * static_cast<double>(tensor.columns()) : 0;
  if (name == "sm3") return all_reduce("tp", tp_, (each_row + each_column) * wide_);
  if (!tensor.has_rows() && !tensor.has_columns()) return;
  const double of_rows = tensor.has_rows() ? matrices : 0;
  const double moments = name == "came" && is_matrix ? 2 : 1, scales = name == "came" ? 1 : 2;
  all_reduce("tp", tp_,
             (moments * (each_row + each_column + of_rows) + scales * matrices) * kSumBytes);
}

// Once a step, by whoever updates the tensor.
void TextbookRank::optimizer() {
  const std::string_view name = run_.options.optimizer->name().name;
  for (const TextbookTensor& tensor : tensors_) {
    if (!has_tensor(tensor)) continue;
    if (needs_whole_matrices(name)) orthogonal_steps(tensor);
    if (name == "adafactor" || name == "came" || name == "sm3") factored_moments(tensor);
    // Adam-mini (arXiv 2406.16793): one mean square for each row of what is divided by columns.
    if (name == "adam_mini" && tensor.here.size() > 1 && tensor.has_columns()) {
      const double rows = tensor.matrices() * static_cast<double>(tensor.rows());
      all_reduce("tp", tp_, rows * kSumBytes / owners(tensor.of_experts));
    }
  }
}

}  // namespace llmtrain::test
