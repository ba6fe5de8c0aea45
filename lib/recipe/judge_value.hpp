#pragma once

#include "lib/base/refused_key.hpp"
#include "lib/recipe/keys.hpp"

namespace llmtrain::recipe {

/// As judge(), of a rule that works with the values of `root`: a RefusedValue that it throws is an
/// issue, too, as is a RefusedKey, at the key that it names.
template <class Rule>
void judge_value(Issues& issues, const Section& root, const Rule& rule) {
  judge(issues, [&] {
    try {
      rule();
    } catch (const RefusedValue& refused) {
      refused.add_to(issues);
    } catch (const RefusedKey& refused) {
      issues.add(*find_keys(root, refused.key()).front().entry, refused.problem(),
                 refused.remedy());
    }
  });
}

}  // namespace llmtrain::recipe
