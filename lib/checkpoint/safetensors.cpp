#include "lib/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "lib/base/require.hpp"
#include "lib/checkpoint/json_reader.hpp"

namespace llmtrain::checkpoint {

namespace {

struct TypeRow {
  StoredType type;
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array<TypeRow, 12> kTypes{{{StoredType::boolean, "BOOL", 1, {}},
                                          {StoredType::u8, "U8", 1, DType::u8},
                                          {StoredType::i8, "I8", 1, {}},
                                          {StoredType::i16, "I16", 2, {}},
                                          {StoredType::u16, "U16", 2, DType::u16},
                                          {StoredType::f16, "F16", 2, DType::f16},
                                          {StoredType::bf16, "BF16", 2, DType::bf16},
                                          {StoredType::i32, "I32", 4, DType::i32},
                                          {StoredType::u32, "U32", 4, DType::u32},
                                          {StoredType::f32, "F32", 4, DType::f32},
                                          {StoredType::f64, "F64", 8, DType::f64},
                                          {StoredType::i64, "I64", 8, DType::i64}}};

const TypeRow& row_of(StoredType type) { return kTypes[static_cast<std::size_t>(type)]; }

constexpr std::size_t kMaxTypeNameBytes = 16;

Metadata parse_metadata(JsonReader& json) {
  Metadata metadata;
  std::uint64_t bytes = 0;
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    std::string value = json.read_string(kMaxMetadataBytes);
    bytes += key.size() + value.size();
    if (bytes > kMaxMetadataBytes) json.fail_here("more than 16 MiB of __metadata__");
    if (!metadata.emplace(key, std::move(value)).second) {
      json.fail_here(fmt::format("metadata key '{}' twice", printable(key)));
    }
  }
  return metadata;
}

/// Reads one entry's object; its offset is still relative to the data.
SafetensorsEntry parse_entry(JsonReader& json, const std::string& name) {
  SafetensorsEntry entry{.name = name, .type = {}, .shape = {}};
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "dtype") {
      const std::string text = json.read_string(kMaxTypeNameBytes);
      const std::optional<StoredType> type = parse_stored_type(text);
      if (!type) {
        json.fail_here(fmt::format("tensor '{}' has dtype '{}', which this program does not read",
                                   printable(name), printable(text)));
      }
      entry.type = *type;
    } else if (key == "shape") {
      entry.shape = json.read_dims(kMaxDims);
    } else if (key == "data_offsets") {
      const Dims range = json.read_dims(2);
      if (range.size() != 2 || range[1] < range[0]) {
        json.fail_here(fmt::format("tensor '{}' has data_offsets {}, expected [begin, end]",
                                   printable(name), to_string(range)));
      }
      entry.offset = static_cast<std::uint64_t>(range[0]);
      entry.bytes = static_cast<std::uint64_t>(range[1] - range[0]);
    } else {
      json.fail_here(
          fmt::format("tensor '{}' has the unknown key '{}'", printable(name), printable(key)));
    }
  }
  seen.require_all({"dtype", "shape", "data_offsets"});
  const std::optional<std::int64_t> elements = num_elements(entry.shape);
  if (!elements || static_cast<std::uint64_t>(*elements) * size_of(entry.type) != entry.bytes) {
    json.fail_here(fmt::format("tensor '{}' of {} {} does not fill its {} bytes", printable(name),
                               to_string(entry.type), to_string(entry.shape), entry.bytes));
  }
  return entry;
}

/// The tensors must fill the data from its first byte to its last, without hole or overlap.
void check_layout(std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                  const std::string& source) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    require<CheckpointError>(
        entry.offset == end,
        "{}: tensor '{}' starts at data byte {}, but the one before ends at {}", source,
        printable(entry.name), entry.offset, end);
    end +=
        entry.bytes;  // cannot wrap: at most 2^17 terms below 2^59 that start at each other's ends
    require<CheckpointError>(
        end <= data_bytes, "{}: tensor '{}' ends at data byte {}, but the file has {} (truncated?)",
        source, printable(entry.name), end, data_bytes);
  }
  require<CheckpointError>(
      end == data_bytes,
      "{}: the tensors end at data byte {}, but the file has {} (trailing bytes)", source, end,
      data_bytes);
}

/// Indices of the entries sorted by name, which must be distinct.
std::vector<std::uint32_t> index_by_name(const std::vector<SafetensorsEntry>& entries,
                                         const std::string& source) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries[a].name < entries[b].name; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::string& name = entries[order[i]].name;
    require<CheckpointError>(name != entries[order[i - 1]].name, "{}: tensor '{}' is there twice",
                             source, printable(name));
  }
  return order;
}

/// Reads and checks everything before the tensors' bytes.
SafetensorsHeader read_header(const File& file, std::uint64_t file_bytes) {
  const std::string source = file.path().string();
  require<CheckpointError>(file_bytes >= 8, "{}: {} bytes are too few for a safetensors file",
                           source, file_bytes);
  std::uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  require<CheckpointError>(length <= kMaxHeaderBytes,
                           "{}: its header claims {} bytes, at most {} are accepted (is it a "
                           "safetensors file?)",
                           source, length, kMaxHeaderBytes);
  require<CheckpointError>(length <= file_bytes - 8,
                           "{}: its header claims {} bytes, but the file has only {} (truncated?)",
                           source, length, file_bytes);
  std::string json(length, '\0');
  file.read_at(8, std::as_writable_bytes(std::span(json)));
  SafetensorsHeader header = parse_safetensors_header(json, file_bytes - 8 - length, source);
  for (SafetensorsEntry& entry : header.entries) entry.offset += 8 + length;
  return header;
}

}  // namespace

std::string_view to_string(StoredType type) { return row_of(type).name; }

std::optional<StoredType> parse_stored_type(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return {};
}

std::size_t size_of(StoredType type) { return row_of(type).bytes; }

StoredType stored_type(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.type;
  }
  fail("dtype {} has no safetensors name", to_string(dtype));
}

std::optional<DType> tensor_dtype(StoredType type) { return row_of(type).dtype; }

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& source) {
  JsonReader json(text, source);
  if (!text.starts_with('{')) json.fail_here("the header does not start with '{'");
  SafetensorsHeader header;
  bool has_metadata = false;
  std::string name;
  json.open_object();
  while (json.next_key(name)) {
    if (name == "__metadata__") {
      if (has_metadata) json.fail_here("'__metadata__' twice");
      has_metadata = true;
      header.metadata = parse_metadata(json);
      continue;
    }
    if (!is_tensor_name(name)) {
      json.fail_here(fmt::format("'{}' is not a tensor name (empty, or with control characters)",
                                 printable(name)));
    }
    if (header.entries.size() == kMaxTensorsPerFile) {
      json.fail_here(fmt::format("more than {} tensors", kMaxTensorsPerFile));
    }
    header.entries.push_back(parse_entry(json, name));
  }
  json.finish();
  check_layout(header.entries, data_bytes, source);
  header.by_name = index_by_name(header.entries, source);
  return header;
}

SafetensorsFile::SafetensorsFile(File file)
    : file_(std::move(file)), file_bytes_(file_.size()), header_(read_header(file_, file_bytes_)) {}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  return SafetensorsFile(File::open_read(path));
}

SafetensorsFile SafetensorsFile::open_nofollow(const std::filesystem::path& path) {
  File file = File::open_read_nofollow(path);
  file.expect_straight_reading();
  return SafetensorsFile(std::move(file));
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      header_.by_name.begin(), header_.by_name.end(), name,
      [&](std::uint32_t i, std::string_view key) { return entries()[i].name < key; });
  if (at == header_.by_name.end() || entries()[*at].name != name) return nullptr;
  return &entries()[*at];
}

const SafetensorsEntry& SafetensorsFile::entry(std::string_view name) const {
  const SafetensorsEntry* const found = find(name);
  require<CheckpointError>(found != nullptr, "{}: has no tensor '{}'", path().string(),
                           printable(name));
  return *found;
}

void SafetensorsFile::read_tensor(std::string_view name, std::span<std::byte> out) const {
  const SafetensorsEntry& wanted = entry(name);
  require(out.size() == wanted.bytes, "tensor '{}' has {} bytes, the buffer {}", printable(name),
          wanted.bytes, out.size());
  read_range(wanted, 0, out);
}

void SafetensorsFile::read_range(const SafetensorsEntry& entry, std::uint64_t first_byte,
                                 std::span<std::byte> out) const {
  require(first_byte <= entry.bytes && out.size() <= entry.bytes - first_byte,
          "bytes {} to {} of tensor '{}' of {}", first_byte, first_byte + out.size(),
          printable(entry.name), entry.bytes);
  file_.read_at(entry.offset + first_byte, out);
}

}  // namespace llmtrain::checkpoint
