#include "lib/param/parameter_words.hpp"

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

StochasticRounding words_of(const Parameter& p, std::uint64_t seed, std::string_view purpose) {
  const Box& box = p.box();
  StochasticRounding words{.on = true, .key = philox_key(seed, purpose, p.name())};
  words.before = p.own_slice().first;
  words.columns = box.shape.numel();
  words.first = 0;
  std::int64_t stride = 1;  // of dim d
  int parts = 0;
  for (int d = box.shape.rank() - 1; d >= 0; --d) {
    words.first += box.offset[d] * stride;
    if (d > 0 && box.shape[d] != p.global_shape()[d]) {
      require(++parts == 1, "{}: parts along several dims", p.name());
      words.columns = box.shape[d] * stride;
      words.stride = p.global_shape()[d] * stride;
    }
    stride *= p.global_shape()[d];
  }
  return words;
}

}  // namespace llmtrain
