#pragma once
/// The trained tensors of a decoder, and what a rank has of them.

#include <cstdint>
#include <vector>

#include "tests/support/textbook/textbook.hpp"

namespace llmtrain::test {

enum class TensorKind : std::uint8_t { matrix, table, norm, bias };

/// Parts of a model that are computed one after the other: the embedding, the blocks, the final
/// norm, the head.
struct ModelUnits {
  int blocks;
  static int embedding() { return 0; }
  static int block(int number) { return 1 + number; }
  int norm() const { return 1 + blocks; }
  int head() const { return 2 + blocks; }
};

struct TextbookTensor {
  TensorKind kind = TensorKind::matrix;
  int unit = 0;
  std::vector<std::int64_t> whole, here;  // shapes: of all, and of the rank's part
  int divided_dim = -1;                   // among the ranks of tp; -1: each has all of it
  int replicas = 1;                       // neighbours along tp that have the same part
  bool of_experts = false;                // each of which has a matrix of its own
  bool is_partial = false;                // each rank of tp knows a term of its gradient
  bool is_tied = false;                   // the table is the head's, too
  std::int64_t head_rows = 1;             // of each head of queries or keys

  double elements() const;  // here
  /// The last two dims are a matrix's, of which there are so many here.
  std::int64_t rows() const { return here.size() > 1 ? here[here.size() - 2] : 1; }
  std::int64_t columns() const { return here.back(); }
  double matrices() const { return here.size() > 2 ? static_cast<double>(here.front()) : 1; }
  /// Ranks of tp have different rows of each matrix, or different columns.
  bool has_rows() const { return here.size() > 1 && divided_dim == last_dim() - 1; }
  bool has_columns() const { return divided_dim == last_dim(); }

 private:
  int last_dim() const { return static_cast<int>(here.size()) - 1; }
};

/// Of the whole model, with what a rank at this place along tp has of them.
std::vector<TextbookTensor> textbook_tensors(const TextbookRun& run, int tp_index);

}  // namespace llmtrain::test
