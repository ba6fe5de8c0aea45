#include "lib/train/sampling.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "lib/base/stop_request.hpp"
#include "lib/train/generate.hpp"

namespace llmtrain::train {

namespace {

/// Nothing when it was asked to stop meanwhile.
std::optional<std::vector<Sample>> decode(engine::Engine& engine, const data::Tokenizer& tokenizer,
                                          const LoopOptions& options, std::uint64_t seed,
                                          std::int64_t step, const std::function<bool()>& stop) {
  std::vector<Sample> samples;
  bool stopped = false;
  for (const std::string& prompt : options.sample_prompts) {
    const std::string text = generate(
        engine, tokenizer, prompt, {.max_tokens = options.sample_tokens, .seed = seed, .stop = [&] {
                                      return stopped = stopped || stop();
                                    }});
    if (stopped) return std::nullopt;
    samples.push_back({.step = step, .prompt = prompt, .text = text});
  }
  return samples;
}

void write(const std::vector<Sample>& samples, RunOutput* output) {
  if (output == nullptr) return;
  for (const Sample& sample : samples) output->add_sample(sample);
}

}  // namespace

bool write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output, const std::function<bool()>& stop) {
  if (options.sample_prompts.empty()) return true;
  // Where a rank has the whole model, the first does it alone; else all of them decode the same.
  if (engine.mesh().model().size() > 1 || engine.passes_together()) {
    const auto samples = decode(engine, tokenizer, options, seed, step, stop);
    if (samples) write(*samples, output);
    return samples.has_value();
  }
  bool is_done = true;
  if (peers.is_first()) {
    const auto samples =
        decode(engine, tokenizer, options, seed, step, [] { return stop_signal() != 0; });
    is_done = samples.has_value();
    if (is_done) write(*samples, output);
  }
  const World::LongWait patience(peers.world());  // the first is at work
  return peers.of_first(is_done ? 1 : 0, "samples") == 1;
}

}  // namespace llmtrain::train
