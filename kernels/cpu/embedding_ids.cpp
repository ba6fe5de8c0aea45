#include "kernels/cpu/embedding_ids.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::kernels {

void check_ids(std::string_view kernel, const View& ids, std::int64_t first, std::int64_t end) {
  const auto* id = ids.as<std::int32_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    require<DataError>(id[i] >= first && id[i] < end,
                       "{}: row {} has token id {}, expected {} to {}; the tokens do not fit the "
                       "model's vocabulary",
                       kernel, i, id[i], first, end - 1);
  }
}

}  // namespace llmtrain::kernels
