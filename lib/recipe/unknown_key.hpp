#pragma once
/// What to say about a key that no section declares at its place.

#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/keys.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::recipe {

class UnknownKeys {
 public:
  UnknownKeys(const Section& root, const LoadRequest& request) : root_(root), request_(request) {}

  struct Answer {
    std::string problem;
    std::string hint;
  };
  /// `here` are the names that are declared in the mapping at `section_path`. In turn: reserved
  /// keys, keys of a choice's other rows, other tools' keys, near names here, the same or near
  /// names elsewhere, and else what is allowed here.
  Answer explain(std::string_view section_path, std::string_view key,
                 const std::vector<std::string>& here);
  /// As explain() without a search for near names.
  Answer explain_briefly(std::string_view section_path, std::string_view key) const;

 private:
  const std::vector<KeyInfo>& keys();
  std::string other_rows(const std::string& path);
  std::string elsewhere(std::string_view key, const std::string& path);

  const Section& root_;
  const LoadRequest& request_;
  std::vector<KeyInfo> keys_;
};

}  // namespace llmtrain::recipe
