#include "lib/checkpoint/safetensors_writer.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/checkpoint/json_reader.hpp"

namespace llmtrain::checkpoint {

namespace {

using Length = std::uint64_t;  // of the header, in front of it

std::string header_json(std::span<const SafetensorsEntry> entries, const Metadata& metadata,
                        std::size_t alignment) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      append_json_string(json, key);
      json += ':';
      append_json_string(json, value);
      json += ',';
    }
    json.back() = '}';
    json += ',';
  }
  for (const SafetensorsEntry& entry : entries) {
    append_json_string(json, entry.name);
    json += fmt::format(R"(:{{"dtype":"{}","shape":[)", to_string(entry.type));
    for (const std::int64_t dim : entry.shape) json += fmt::format("{},", dim);
    if (!entry.shape.empty()) json.pop_back();
    json += fmt::format("],\"data_offsets\":[{},{}]}},", entry.offset, entry.offset + entry.bytes);
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  const std::size_t beyond = (sizeof(Length) + json.size()) % alignment;
  if (beyond > 0) json.append(alignment - beyond, ' ');
  return json;
}

}  // namespace

std::vector<std::size_t> file_order(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(tensors[b].type, tensors[a].name) < std::tie(tensors[a].type, tensors[b].name);
  });
  return order;
}

SafetensorsHead make_head(std::span<const TensorSpec> tensors, const Metadata& metadata,
                          std::size_t alignment, const std::string& file) {
  SafetensorsHead head;
  for (const std::size_t i : file_order(tensors)) {
    const TensorSpec& tensor = tensors[i];
    const std::optional<std::int64_t> elements = num_elements(tensor.shape);
    require<CheckpointError>(elements.has_value(), "{}: tensor '{}' has the impossible shape {}",
                             file, printable(tensor.name), to_string(tensor.shape));
    const std::uint64_t bytes = static_cast<std::uint64_t>(*elements) * size_of(tensor.type);
    head.entries.push_back({tensor.name, tensor.type, tensor.shape, head.file_bytes, bytes});
    head.file_bytes += bytes;
  }
  const std::string json = header_json(head.entries, metadata, alignment);
  // The reader is the judge of names, duplicates and limits: nothing is written that it would
  // refuse.
  require<CheckpointError>(json.size() <= kMaxHeaderBytes, "{}: a header of {} bytes is too long",
                           file, json.size());
  parse_safetensors_header(json, head.file_bytes, file);

  const Length length = json.size();
  head.text.assign(reinterpret_cast<const char*>(&length), sizeof length);
  head.text += json;
  for (SafetensorsEntry& entry : head.entries) entry.offset += head.text.size();
  head.file_bytes += head.text.size();
  return head;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const TensorSpec> tensors, const Metadata& metadata,
                                     Pieces pieces)
    : SafetensorsWriter(path, make_head(tensors, metadata, kLeastAlignment, path.string()),
                        std::move(pieces)) {}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, SafetensorsHead head,
                                     Pieces pieces, const std::optional<Hash128>& hash)
    : file_(path, std::move(pieces)), head_(std::move(head)), hash_(hash) {
  const std::string text = std::exchange(head_.text, {});
  write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  account(bytes);
  file_.write(bytes);
}

void SafetensorsWriter::write_kept(std::span<const std::byte> bytes) {
  account(bytes);
  file_.write_kept(bytes);
}

void SafetensorsWriter::account(std::span<const std::byte> bytes) {
  require(bytes.size() <= head_.file_bytes - written_bytes_,
          "{}: more data than the header announces", file_.path().string());
  if (!hash_) hasher_.update(bytes);
  written_bytes_ += bytes.size();
}

void SafetensorsWriter::sync() {
  require(written_bytes_ == head_.file_bytes, "{}: {} of {} bytes written", file_.path().string(),
          written_bytes_, head_.file_bytes);
  file_.sync();
}

FileRecord SafetensorsWriter::close() {
  file_.close();
  return {head_.file_bytes, hash_ ? *hash_ : hasher_.digest()};
}

FileRecord write_safetensors(const std::filesystem::path& path,
                             std::span<const TensorBytes> tensors, const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorBytes& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(path, specs, metadata);
  const std::vector<std::size_t> order = file_order(specs);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const TensorBytes& tensor = tensors[order[i]];
    require(tensor.bytes.size() == writer.entries()[i].bytes, "tensor '{}' has {} bytes, given {}",
            printable(tensor.spec.name), writer.entries()[i].bytes, tensor.bytes.size());
    writer.write(tensor.bytes);
  }
  writer.sync();
  return writer.close();
}

}  // namespace llmtrain::checkpoint
