#include "lib/train/tensorboard.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <unistd.h>

#include <fmt/format.h>

#include "lib/base/crc32c.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/utf8.hpp"
#include "lib/train/diagnostics_record.hpp"

namespace llmtrain::train {

namespace tensorboard {

namespace {

template <class Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
    out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  }
}

/// The few wire types of protobuf that events need.
class Message {
 public:
  Message& varint(int field, std::uint64_t value) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | 0);
    append_varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | 1);
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | 2);
    append_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& fixed32(int field, float value) {
    append_varint(static_cast<std::uint64_t>(field) << 3 | 5);
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  const std::string& serialized() const { return bytes_; }

 private:
  void append_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>((value & 0x7F) | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

/// TFRecord masks its checksums because a CRC of data that contains CRCs is weak.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

std::string framed(const Message& event) {
  const std::string& payload = event.serialized();
  std::string record;
  append_little_endian(record, std::uint64_t{payload.size()});
  append_little_endian(record, masked_crc(record));
  record += payload;
  append_little_endian(record, masked_crc(payload));
  return record;
}

// Field numbers of tensorboard/compat/proto/{event,summary,tensor}.proto.
Message event(double wall_time) { return Message().fixed64(1, wall_time); }

Message event(double wall_time, std::int64_t step) {
  return event(wall_time).varint(2, static_cast<std::uint64_t>(step));
}

std::string summary_record(double wall_time, std::int64_t step, const Message& value) {
  constexpr int kSummary = 5, kValue = 1;
  return framed(event(wall_time, step).message(kSummary, Message().message(kValue, value)));
}

}  // namespace

std::string version_record(double wall_time) {
  constexpr int kFileVersion = 3;
  return framed(event(wall_time).bytes(kFileVersion, "brain.Event:2"));
}

std::string scalar_record(double wall_time, std::int64_t step, std::string_view tag, float value) {
  constexpr int kTag = 1, kSimpleValue = 2;
  return summary_record(wall_time, step, Message().bytes(kTag, tag).fixed32(kSimpleValue, value));
}

std::string text_record(double wall_time, std::int64_t step, std::string_view tag,
                        std::string_view text) {
  constexpr int kDType = 1, kShape = 2, kStringVal = 8, kDtString = 7;
  const Message tensor =
      Message().varint(kDType, kDtString).message(kShape, Message()).bytes(kStringVal, text);
  constexpr int kPluginData = 1, kPluginName = 1, kDataClass = 4, kDataClassTensor = 2;
  const Message metadata = Message()
                               .message(kPluginData, Message().bytes(kPluginName, "text"))
                               .varint(kDataClass, kDataClassTensor);
  constexpr int kTag = 1, kTensor = 8, kMetadata = 9;
  return summary_record(
      wall_time, step,
      Message().bytes(kTag, tag).message(kTensor, tensor).message(kMetadata, metadata));
}

std::string session_start_record(double wall_time, std::int64_t first_step) {
  constexpr int kSessionLog = 7, kStatus = 1, kStart = 1;
  return framed(
      event(wall_time, first_step).message(kSessionLog, Message().varint(kStatus, kStart)));
}

}  // namespace tensorboard

namespace {

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// TensorBoard reads the files of a directory in the order of their names, and a name begins with
/// the second of its creation: a run that restarts at once must still sort behind its predecessor.
std::int64_t next_time_stamp(const std::filesystem::path& directory) {
  auto stamp = static_cast<std::int64_t>(wall_time_now());
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFilePrefix)) continue;
    std::int64_t other = 0;
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), other);
    stamp = std::max(stamp, other + 1);
  }
  return stamp;
}

File create_event_file(const std::filesystem::path& directory) {
  create_directories_durably(directory);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return File::create_new(directory / fmt::format("{}{:010d}.{}.{}.0", kFilePrefix,
                                                  next_time_stamp(directory), host, ::getpid()));
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory,
                                     std::optional<std::int64_t> resumed_step)
    : file_(create_event_file(directory)) {
  const double now = wall_time_now();
  pending_ = tensorboard::version_record(now);
  // A run that starts anew in an old directory purges everything.
  pending_ += tensorboard::session_start_record(now, resumed_step.value_or(0));
  flush();
}

void TensorBoardWriter::add(const StepRecord& record) {
  const double now = wall_time_now();
  for (const auto& [key, value] : record.fields) {
    const std::optional<double> number = record.number(key);
    if (!number || is_of_one_tensor(key)) continue;
    pending_ += tensorboard::scalar_record(now, record.step, key, static_cast<float>(*number));
  }
}

void TensorBoardWriter::add_text(std::int64_t step, std::string_view tag, std::string_view text) {
  std::string verbatim = "    ";  // Markdown shows lines indented by four as they are
  for (const char c : replace_invalid_utf8(text)) {
    verbatim += c;
    if (c == '\n') verbatim += "    ";
  }
  pending_ += tensorboard::text_record(wall_time_now(), step, tag, verbatim);
}

void TensorBoardWriter::flush() {
  file_.write(pending_);
  pending_.clear();
}

}  // namespace llmtrain::train
