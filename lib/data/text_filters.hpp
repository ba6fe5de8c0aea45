#pragma once
/// Simple filters of documents: a quantity of the text, and the threshold that it must keep to.
///
/// Sources of quantities and of the thresholds named in the table: C4 (Raffel et al., JMLR 2020),
/// Gopher (Rae et al., arXiv:2112.11446, appendix A.1.1), Codex (Chen et al., arXiv:2107.03374,
/// section 3.1).

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/data/text_statistics.hpp"

namespace llmtrain::data {

/// A row of the table. A document is dropped when its value is below a minimum, or above a maximum.
struct TextFilter {
  std::string_view name, doc;
  bool is_minimum;
  double most;     ///< largest threshold that means something; the least is 0
  unsigned needs;  ///< sum of `Statistic`s
  double (*value)(const TextStatistics&);
};
std::span<const TextFilter> text_filter_table();

/// A filter that is on.
struct FilterThreshold {
  std::size_t filter = 0;  ///< row of the table
  double threshold = 0;
};

/// The filter that drops a text.
struct FilterVerdict {
  std::size_t filter = 0;
  double value = 0;
};

/// The first of `filters` that drops `text`; empty if none does.
std::optional<FilterVerdict> filter_text(std::string_view text,
                                         std::span<const FilterThreshold> filters);

}  // namespace llmtrain::data
