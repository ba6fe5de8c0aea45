#include "lib/train/run_output.hpp"

#include "lib/base/error.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::train {

template <class Draw>
void RunOutput::draw(const Draw& draw) {
  try {
    draw();
  } catch (const StorageError& error) {
    log::warning("{}; the run goes on, and TensorBoard has no more of it until its next start",
                 error.what());
    tensorboard_.reset();
  }
}

RunOutput::RunOutput(const RunOutputOptions& options)
    : directory_(options.directory),
      metrics_(options.directory / "metrics.jsonl", options.resumed_step),
      console_(options.console) {
  if (options.tensorboard) {
    draw([&] { tensorboard_.emplace(options.directory / "tensorboard", options.resumed_step); });
  }
  keep_incidents(directory_);
  for (const Sample& sample : keep_samples(directory_, options.resumed_step)) show(sample);
}

template <class Write>
bool RunOutput::keep(const Write& write) {
  if (failed_) return false;
  try {
    write();
  } catch (const StorageError& error) {
    failed_ = true;
    log::warning("{}; the run saves what it has, and stops", error.what());
  }
  return !failed_;
}

bool RunOutput::write(const StepRecord& record) {
  if (!keep([&] { metrics_.write(record); })) return false;
  console_.record(record);
  if (tensorboard_) tensorboard_->add(record);
  return true;
}

void RunOutput::sync() {
  keep([&] { metrics_.sync(); });
}

void RunOutput::flush() {
  if (tensorboard_) draw([&] { tensorboard_->flush(); });
}

void RunOutput::add_sample(const Sample& sample) {
  try {
    append_sample(directory_, sample);
  } catch (const StorageError& error) {
    log::warning("{}; the run goes on without this sample of step {}", error.what(), sample.step);
  }
  show(sample);
}

void RunOutput::show(const Sample& sample) {
  if (tensorboard_) tensorboard_->add_text(sample.step, "sample", sample.prompt + sample.text);
}

}  // namespace llmtrain::train
