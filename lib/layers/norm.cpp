#include "lib/layers/norm.hpp"

namespace llmtrain::layers {

Norm::Norm(ParameterStore& store, const std::string& name, std::int64_t hidden, bool bias,
           const ops::NormOptions& options)
    : options_(options) {
  weight_ = &store.declare(
      {.name = name + ".weight",
       .shape = {hidden},
       .role = ParameterRole::norm,
       .init = options.weight_offset == 0 ? Initializer{Initializer::Kind::ones} : Initializer{}});
  if (bias) {
    bias_ = &store.declare(
        {.name = name + ".bias", .shape = {hidden}, .role = ParameterRole::bias, .init = {}});
  }
}

}  // namespace llmtrain::layers
