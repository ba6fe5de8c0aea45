#include "lib/train/sampling.hpp"

#include "lib/train/generate.hpp"

namespace llmtrain::train {

namespace {

void decode(engine::Engine& engine, const data::Tokenizer& tokenizer, const LoopOptions& options,
            std::uint64_t seed, std::int64_t step, RunOutput* output) {
  for (const std::string& prompt : options.sample_prompts) {
    const std::string text =
        generate(engine, tokenizer, prompt, {.max_tokens = options.sample_tokens, .seed = seed});
    if (output != nullptr) output->add_sample({.step = step, .prompt = prompt, .text = text});
  }
}

}  // namespace

void write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output) {
  if (options.sample_prompts.empty()) return;
  // Where a rank has the whole model, the first does it alone; else all of them decode the same.
  const bool has_all = engine.mesh().model().size() == 1 && !engine.passes_together();
  if (output != nullptr || !has_all) decode(engine, tokenizer, options, seed, step, output);
  if (!has_all) return;
  const World::LongWait patience(peers.world());  // the first is at work
  peers.barrier("samples");
}

}  // namespace llmtrain::train
