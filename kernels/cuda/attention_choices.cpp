#include "kernels/cuda/attention_choices.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

LibraryAttention* AttentionChoices::library(std::string& why) {
  if (!opened_) library_ = open_library_attention(problem_);
  opened_ = true;
  if (library_ == nullptr) why = problem_;
  return library_.get();
}

void AttentionChoices::record(bool backward, std::string_view who, std::string_view why) {
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& e) { return e.who == who && e.why == why; });
  if (entry == entries_.end()) {
    entry = entries_.insert(entry, Entry{.who = std::string(who), .why = std::string(why)});
  }
  (backward ? entry->backward : entry->forward) = true;
}

std::vector<std::string> AttentionChoices::lines() const {
  std::vector<std::string> lines;
  for (const Entry& entry : entries_) {
    const char* const directions = !entry.backward  ? "forward"
                                   : !entry.forward ? "backward"
                                                    : "forward, backward";
    lines.push_back(fmt::format("attention: {} ({}{}{})", entry.who, directions,
                                entry.why.empty() ? "" : "; ", entry.why));
  }
  return lines;
}

}  // namespace llmtrain::kernels::cuda
