#include "lib/optim/optimizer_options.hpp"

#include <fmt/ranges.h>

namespace llmtrain::optim {

void OptimizerOptions::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] {
    const OptimizerRow& chosen = name();
    if (state_dtype() != StateType::bf16 || chosen.no_bf16_states.empty()) return;
    std::vector<std::string_view> others;
    for (const OptimizerRow& row : optimizer_table()) {
      if (row.no_bf16_states.empty()) others.push_back(row.name);
    }
    issues.add(state_dtype, fmt::format("bf16: {} {}", chosen.name, chosen.no_bf16_states),
               fmt::format("leave it out, or choose one of {}", fmt::join(others, ", ")));
  });
}

}  // namespace llmtrain::optim
