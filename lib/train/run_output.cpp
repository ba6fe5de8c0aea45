#include "lib/train/run_output.hpp"

namespace llmtrain::train {

RunOutput::RunOutput(const RunOutputOptions& options)
    : directory_(options.directory),
      metrics_(options.directory / "metrics.jsonl", options.resumed_step),
      console_(options.console) {
  if (options.tensorboard) {
    tensorboard_.emplace(options.directory / "tensorboard", options.resumed_step);
  }
  keep_incidents(directory_);
  for (const Sample& sample : keep_samples(directory_, options.resumed_step)) show(sample);
}

void RunOutput::write(const StepRecord& record) {
  metrics_.write(record);
  console_.record(record);
  if (tensorboard_) tensorboard_->add(record);
}

void RunOutput::flush() {
  if (tensorboard_) tensorboard_->flush();
}

void RunOutput::add_sample(const Sample& sample) {
  append_sample(directory_, sample);
  show(sample);
}

void RunOutput::show(const Sample& sample) {
  if (tensorboard_) tensorboard_->add_text(sample.step, "sample", sample.prompt + sample.text);
}

}  // namespace llmtrain::train
