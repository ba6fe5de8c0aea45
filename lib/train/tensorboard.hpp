#pragma once
/// TensorBoard event files, written without TensorFlow or protobuf.
///
/// A file is a sequence of TFRecords: u64 length | u32 masked CRC-32C of the length | payload | u32
/// masked CRC-32C of the payload, little-endian. A payload is one `Event` message
/// (tensorboard/compat/proto/event.proto); the first one carries the version "brain.Event:2".

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/file.hpp"
#include "lib/train/metrics.hpp"

namespace llmtrain::train {

namespace tensorboard {

/// Complete records, ready to be appended to a file. `wall_time` is in seconds since 1970.
std::string version_record(double wall_time);
std::string scalar_record(double wall_time, std::int64_t step, std::string_view tag, float value);
/// One string for the "text" dashboard, which renders it as Markdown.
std::string text_record(double wall_time, std::int64_t step, std::string_view tag,
                        std::string_view text);
/// SessionLog START: TensorBoard then forgets the events of earlier files with this step or a later
/// one.
std::string session_start_record(double wall_time, std::int64_t first_step);

}  // namespace tensorboard

/// One event file in a directory of its own per run. Records wait in memory until `flush`.
class TensorBoardWriter {
 public:
  /// Creates the directory if needed and a new file in it that sorts behind all existing ones.
  /// Given the step of the checkpoint that the run resumes from, the events of that step, which
  /// must be written again, and of later ones in older files are purged by TensorBoard when it
  /// reads this one. StorageError.
  TensorBoardWriter(const std::filesystem::path& directory,
                    std::optional<std::int64_t> resumed_step);

  /// Every number of the record as a scalar named by its key; strings are not drawn.
  void add(const StepRecord& record);
  /// A sample or another text, shown verbatim.
  void add_text(std::int64_t step, std::string_view tag, std::string_view text);
  void flush();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  File file_;
  std::string pending_;
};

}  // namespace llmtrain::train
