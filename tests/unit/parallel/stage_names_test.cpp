#include "lib/parallel/stage_names.hpp"

#include <doctest/doctest.h>

namespace llmtrain::parallel {

namespace {

using Texts = std::vector<std::string>;
using Blocks = std::vector<std::int64_t>;

Blocks blocks_of(const Texts& stages, std::int64_t num_blocks) {
  return std::get<Blocks>(blocks_of_names(stages, num_blocks));
}

std::string problem_of(const Texts& stages, std::int64_t num_blocks) {
  const auto found = blocks_of_names(stages, num_blocks);
  const auto* mistake = std::get_if<NamesMistake>(&found);
  return mistake == nullptr ? "" : mistake->problem + "; " + mistake->remedy;
}

}  // namespace

TEST_CASE("stages have the blocks whose names they list") {
  CHECK(blocks_of({"embed_tokens layers.0-2", "layers.3, layers.4", "layers.5 norm lm_head"}, 6) ==
        Blocks{3, 2, 1});
  CHECK(blocks_of({"model.embed_tokens", "model.layers.0-1", "model.norm,lm_head"}, 2) ==
        Blocks{0, 2, 0});
  CHECK(blocks_of({"embed_tokens layers.0-0 norm lm_head"}, 1) == Blocks{1});
}

TEST_CASE("names that are not the model's layers, once and in order, are mistakes with a remedy") {
  const std::string once = "; name every layer of the model once";
  CHECK(problem_of({"embed_tokens layers.0", "layers.2 norm lm_head"}, 3) ==
        "no stage has layers.1" + once);
  CHECK(problem_of({"embed_tokens layers.0", "layers.1 norm"}, 2) == "no stage has lm_head" + once);
  CHECK(problem_of({"layers.0", "layers.1 norm lm_head"}, 2) == "no stage has embed_tokens" + once);
  CHECK(problem_of({}, 1) == "no stage has embed_tokens" + once);
  CHECK(problem_of({"embed_tokens layers.0-1", "layers.1-2 norm lm_head"}, 3) ==
        "layers.1 is on stage 0 and on stage 1" + once);
  CHECK(problem_of({"embed_tokens layers.0 layers.0-1", "norm lm_head"}, 2) ==
        "layers.0 is on stage 0 and on stage 0" + once);
  CHECK(problem_of({"embed_tokens", "layers.0 norm lm_head lm_head"}, 1) ==
        "lm_head is on stage 1 and on stage 1" + once);
  CHECK(problem_of({"embed_tokens layers.0-1", "layers.0-1 layers.0-1 norm lm_head"}, 2)
            .find("is on stage") != std::string::npos);
  CHECK(problem_of({"layers.0", "embed_tokens layers.1 norm lm_head"}, 2) ==
        "embed_tokens is on stage 1, and only the first one can embed; name it on stage 0");
  CHECK(problem_of({"embed_tokens layers.0 norm", "layers.1 lm_head"}, 2) ==
        "norm is on stage 0, and only the last one can have it; name norm and lm_head on stage 1");
  CHECK(problem_of({"embed_tokens layers.1", "layers.0 norm lm_head"}, 2) ==
        "layers.0 on stage 1 comes behind layers.1; name layers in the model's order");
  for (const char* unknown :
       {"layers.3", "layers.1-3", "layers.2-1", "layers.", "layers.1-", "layers.-1", "layers.1x",
        "layer.1", "h.0", "wte", "layers.99999999999999999999"}) {
    CAPTURE(unknown);
    CHECK(problem_of({"embed_tokens layers.0 " + std::string(unknown), "norm lm_head"}, 3) ==
          "\"" + std::string(unknown) +
              "\" on stage 0 is no layer of the model; its layers are embed_tokens, layers.0-2, "
              "norm, lm_head");
  }
}

}  // namespace llmtrain::parallel
