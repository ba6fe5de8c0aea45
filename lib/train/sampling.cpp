#include "lib/train/sampling.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "lib/base/stop_request.hpp"
#include "lib/train/generate.hpp"

namespace llmtrain::train {

namespace {

/// Nothing when it was asked to stop meanwhile.
std::optional<std::string> decode(engine::Engine& engine, const data::Tokenizer& tokenizer,
                                  const std::string& prompt, std::int64_t tokens,
                                  std::uint64_t seed, const std::function<bool()>& stop) {
  bool stopped = false;
  std::string text = generate(
      engine, tokenizer, prompt,
      {.max_tokens = tokens, .seed = seed, .stop = [&] { return stopped = stopped || stop(); }});
  if (stopped) return std::nullopt;
  return text;
}

void write(const std::vector<Sample>& samples, RunOutput* output) {
  if (output == nullptr) return;
  for (const Sample& sample : samples) output->add_sample(sample);
}

}  // namespace

bool write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output, const StopRequests& stop) {
  // Where a rank has the whole model, the first does it alone; else all of them decode the same.
  const bool together = engine.mesh().model().size() > 1 || engine.passes_together();
  const World::LongWait patience(peers.world());  // the first is at work
  std::vector<Sample> samples;
  for (const std::string& prompt : options.sample_prompts) {
    std::optional<std::string> text;
    if (together || peers.is_first()) {
      text = decode(engine, tokenizer, prompt, options.sample_tokens, seed,
                    together ? stop.of_all : stop.here);
    }
    if (!together && stop.of_all()) return false;
    if (peers.of_first(text ? 1 : 0, "samples") == 0) return false;
    samples.push_back({.step = step, .prompt = prompt, .text = text.value_or("")});
  }
  write(samples, output);
  return true;
}

}  // namespace llmtrain::train
