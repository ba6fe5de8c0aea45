#pragma once
/// `checkpoint` of the recipe.

#include <cstdint>
#include <optional>
#include <string>

#include "lib/recipe/load.hpp"

namespace llmtrain::train {

/// Where a checkpoint is: in the run's directory, or on faster storage that may be lost
/// (checkpoint.local).
enum class Tier : std::uint8_t { durable, local };

/// What a run that begins goes on from.
struct Resume {
  enum class Mode : std::uint8_t { automatic, never, must, step };
  Mode mode = Mode::automatic;
  std::uint64_t step = 0;  // of Mode::step
};

}  // namespace llmtrain::train

namespace llmtrain::recipe {

/// "auto", "never", "must" or the number of a step.
template <>
struct Codec<train::Resume> {
  using Rules = Rule;
  static bool read(const Node& node, const Rules&, train::Resume& out, Problems& problems);
  static std::string write(const train::Resume& value, const Rules&);
  static TypeInfo type(const Rules&);
};

}  // namespace llmtrain::recipe

namespace llmtrain::train {

struct LocalCheckpointSection : recipe::Section {
  recipe::Key<std::optional<std::string>> directory{
      this, "directory", std::nullopt,
      "fast storage that all ranks of the job share (a burst buffer, a disk or the memory of the "
      "one machine: /dev/shm); each run has a directory of its own there, and a new one where that "
      "is gone; null = no local checkpoints",
      recipe::not_empty()};
  recipe::Key<recipe::Interval> interval{
      this, "interval", recipe::Interval::every_steps(50),
      "save there every so many steps, or so much time, unless checkpoint.interval saves at that "
      "step or it is a multiple of checkpoint.keep_every",
      recipe::at_least(1)};
  recipe::Key<recipe::Count> keep_latest{this, "keep_latest", 2, "newest checkpoints to keep there",
                                         recipe::at_least(2)};
};

struct CheckpointSection : recipe::Section {
  recipe::Key<std::optional<recipe::Interval>> interval{
      this, "interval", recipe::Interval::every_steps(500),
      "save every so many steps, or so much time (\"10min\"); null = only at the end",
      recipe::at_least(1)};
  recipe::Key<std::optional<recipe::Count>> keep_latest{this, "keep_latest", recipe::Count(3),
                                                        "newest checkpoints to keep; null = all",
                                                        recipe::at_least(2)};
  recipe::Key<recipe::Count> keep_every{
      this, "keep_every", 0, "multiples of this step are saved, too, and kept for good; 0 = none",
      recipe::Rule{}};
  recipe::Key<recipe::Bytes> max_shard_size{
      this, "max_shard_size", recipe::Bytes(std::uint64_t{4} << 30),
      "files of a checkpoint are cut at this size", recipe::at_least(1 << 16)};
  recipe::Key<bool> async{
      this, "async", false,
      "write checkpoints while the run goes on, from a copy that takes as much memory again as a "
      "rank saves; one is under way at a time, so a crash may cost up to two intervals"};
  recipe::Key<double> async_share{
      this, "async_share", 0.9,
      "share of the time in which each rank writes beside the run: the smaller, the less steps "
      "slow down meanwhile, and the later the checkpoint is there (1 where processors have "
      "nothing else to do, as beside GPUs: files go through the page cache then); all of the time "
      "once somebody waits or half of the interval is over",
      recipe::at_least(1e-9) & recipe::at_most(1)};
  recipe::Key<bool> export_hf{
      this, "export_hf", false,
      "each checkpoint in run.output_dir also has the model for Hugging Face's programs, in its "
      "folder hf/: what `llmtrain ckpt export` writes later"};
  recipe::Key<Resume> resume{
      this, "resume", Resume{},
      "auto: from the newest valid checkpoint if there is one; must: fail without one; never: "
      "refuse an output directory that has one; 1200: go back to the checkpoint of this step in "
      "run.output_dir, and set newer ones aside. Each start does that, of a Slurm job the first"};
  recipe::Sub<LocalCheckpointSection> local{
      this, "local", "more checkpoints, between those in run.output_dir, on fast storage"};
  void validate(recipe::Issues& issues) const override;
};

}  // namespace llmtrain::train
