// Indexed datasets of Megatron-LM.
#include <array>
#include <cstring>
#include <string>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/token_format.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;
constexpr std::uint64_t kHeaderBytes = 34;  // what follows is not aligned

fs::path with_extension(fs::path path, std::string_view extension) {
  return path.replace_extension(extension);
}

/// The code of `DType` in indexed_dataset.py.
IdType id_type_of(unsigned code, const std::string& name) {
  switch (code) {
    case 1:
      return IdType::u8;
    case 2:
      return IdType::i8;
    case 3:
      return IdType::i16;
    case 4:
      return IdType::i32;
    case 5:
      return IdType::i64;
    case 6:
      fail<DataError>("{}: ids of type float64 (code 6 at offset {}) are no ids", name, kTypeAt);
    case 7:
      fail<DataError>("{}: ids of type float32 (code 7 at offset {}) are no ids", name, kTypeAt);
    case 8:
      return IdType::u16;
    default:
      fail<DataError>("{}: unknown type of ids {} at offset {}, but Megatron-LM has 1 to 8", name,
                      code, kTypeAt);
  }
}

/// An .idx file.
class Index {
 public:
  Index(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {
    require<DataError>(
        bytes_.size() >= kHeaderBytes,
        "{}: {} bytes are too short for the header of a Megatron-LM index, which has "
        "{} (truncated?)",
        name_, bytes_.size(), kHeaderBytes);
    require<DataError>(std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) == 0,
                       "{}: not a Megatron-LM index (it does not start with 'MMIDIDX')", name_);
    const auto version = load<std::uint64_t>(kVersionAt);
    require<DataError>(version == 1, "{}: version {} at offset {}, but there is only 1", name_,
                       version, kVersionAt);
    type_ = id_type_of(load<std::uint8_t>(kTypeAt), name_);
    sequences_ = load<std::uint64_t>(kSequencesAt);
    indices_ = load<std::uint64_t>(kDocumentsAt);
    check_size();
  }

  IdType type() const { return type_; }

  /// Ids before the end of each document. `bin_bytes` is the size of the file `bin`.
  std::vector<std::uint64_t> document_ends(std::uint64_t bin_bytes, const std::string& bin) const {
    const std::vector<std::uint64_t> starts = sequence_starts(bin_bytes, bin);
    std::vector<std::uint64_t> ends;
    ends.reserve(indices_ - 1);
    std::int64_t before = 0;
    for (std::uint64_t d = 0; d < indices_; ++d) {
      const std::uint64_t at = indices_at() + d * sizeof(std::int64_t);
      const auto sequence = load<std::int64_t>(at);
      require<DataError>(d > 0 || sequence == 0,
                         "{}: the first document begins at sequence {} (offset {}), not at 0",
                         name_, sequence, at);
      require<DataError>(sequence >= before && static_cast<std::uint64_t>(sequence) <= sequences_,
                         "{}: document index {} is {} (offset {}), but the one before is {} and "
                         "there are {} sequences",
                         name_, d, sequence, at, before, sequences_);
      if (d > 0) ends.push_back(starts[static_cast<std::size_t>(sequence)]);
      before = sequence;
    }
    require<DataError>(static_cast<std::uint64_t>(before) == sequences_,
                       "{}: the documents end at sequence {} of {}: the others belong to none, as "
                       "if IndexedDatasetBuilder.end_document was not called when it was written",
                       name_, before, sequences_);
    return ends;
  }

 private:
  template <class T>
  T load(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  std::uint64_t pointers_at() const { return kHeaderBytes + sequences_ * sizeof(std::int32_t); }
  std::uint64_t indices_at() const { return pointers_at() + sequences_ * sizeof(std::int64_t); }

  void check_size() const {
    const std::uint64_t room = bytes_.size() - kHeaderBytes;
    constexpr std::uint64_t kSequenceBytes = sizeof(std::int32_t) + sizeof(std::int64_t);
    // Each count is bounded by the file's size before they are multiplied, so nothing overflows.
    const bool fits =
        sequences_ <= room / kSequenceBytes && indices_ <= room / sizeof(std::int64_t);
    const std::uint64_t expected =
        fits ? sequences_ * kSequenceBytes + indices_ * sizeof(std::int64_t) : 0;
    require<DataError>(
        fits && expected <= room,
        "{}: {} sequences (offset {}) and {} document indices (offset {}) do not fit "
        "its {} bytes (truncated?)",
        name_, sequences_, kSequencesAt, indices_, kDocumentsAt, bytes_.size());
    require<DataError>(
        expected == room || expected + sequences_ != room,
        "{}: a mode for each of the {} sequences at offset {}: a multimodal dataset, "
        "of which not all ids are text",
        name_, sequences_, kHeaderBytes + expected);
    require<DataError>(expected == room,
                       "{}: {} bytes behind the last document index, at offset {}", name_,
                       room - expected, kHeaderBytes + expected);
    require<DataError>(indices_ >= 2,
                       "{}: {} document indices at offset {}: no document (there is one index more "
                       "than documents)",
                       name_, indices_, kDocumentsAt);
  }

  /// Ids before each sequence, and behind the last.
  std::vector<std::uint64_t> sequence_starts(std::uint64_t bin_bytes,
                                             const std::string& bin) const {
    const std::uint64_t size = size_of(type_);
    std::vector<std::uint64_t> starts;
    starts.reserve(sequences_ + 1);
    std::uint64_t ids = 0;
    for (std::uint64_t s = 0; s < sequences_; ++s) {
      starts.push_back(ids);
      const std::uint64_t length_at = kHeaderBytes + s * sizeof(std::int32_t);
      const std::uint64_t pointer_at = pointers_at() + s * sizeof(std::int64_t);
      const auto length = load<std::int32_t>(length_at);
      const auto pointer = load<std::int64_t>(pointer_at);
      require<DataError>(length >= 0, "{}: sequence {} has {} ids (offset {})", name_, s, length,
                         length_at);
      // Every writer puts sequence behind sequence; otherwise a document would be in pieces.
      require<DataError>(pointer >= 0 && static_cast<std::uint64_t>(pointer) == ids * size,
                         "{}: sequence {} begins at byte {} of {} (offset {}), but the sequences "
                         "before it end at byte {}",
                         name_, s, pointer, bin, pointer_at, ids * size);
      ids += static_cast<std::uint64_t>(length);
      require<DataError>(ids * size <= bin_bytes,
                         "{}: sequence {} has {} ids (offset {}) and ends at byte {} of {}, which "
                         "has {} (truncated, or of another index?)",
                         name_, s, length, length_at, ids * size, bin, bin_bytes);
    }
    starts.push_back(ids);
    require<DataError>(ids * size == bin_bytes,
                       "{}: its sequences end at byte {} of {}, which has {} (of another index?)",
                       name_, ids * size, bin, bin_bytes);
    return starts;
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  IdType type_ = IdType::u16;
  std::uint64_t sequences_ = 0;
  std::uint64_t indices_ = 0;
};

bool is_index(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const File file = File::open_read(path);
  std::array<char, kMagic.size()> start;
  if (file.size() < start.size()) return false;
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  return std::string_view(start.data(), start.size()) == kMagic;
}

}  // namespace

bool recognises_megatron(const fs::path& path) {
  const fs::path extension = path.extension();
  return (extension == ".bin" || extension == ".idx") && is_index(with_extension(path, ".idx"));
}

fs::path megatron_main_file(const fs::path& path) {
  if (path.extension() != ".idx") return path;
  const fs::path bin = with_extension(path, ".bin");
  require<DataError>(fs::exists(bin), "{}: {} with its tokens is missing beside it; put it there",
                     path.string(), bin.string());
  return bin;
}

TokenLayout open_megatron(const fs::path& path) {
  const fs::path index_path = with_extension(path, ".idx");
  require<DataError>(
      path.extension() == ".bin" && fs::exists(index_path),
      "{}: a Megatron-LM dataset is a .bin and its index, and {} is missing; put it there",
      path.string(), index_path.string());
  require<DataError>(fs::exists(path), "{}: the tokens of {} are missing; put them there",
                     path.string(), index_path.string());
  TokenLayout layout;
  layout.files.push_back(MappedFile::open(path));
  layout.ids = layout.files.back().bytes();
  const MappedFile index_file = MappedFile::open(index_path);
  try {
    const Index index(index_file.bytes(), index_path.string());
    layout.type = index.type();
    layout.document_ends = index.document_ends(layout.ids.size(), path.string());
  } catch (const DataError& e) {
    fail<DataError>(
        "{}; write both files again by tools/preprocess_data.py of Megatron-LM, or leave them out "
        "of the data sources",
        e.what());
  }
  return layout;
}

}  // namespace llmtrain::data
