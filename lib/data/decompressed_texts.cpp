#include "lib/data/decompressed_texts.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "lib/base/directory.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

std::optional<std::uint64_t> read_record(const fs::path& path) {
  if (path.empty() || !fs::exists(path)) return std::nullopt;
  constexpr std::uint64_t kLimitBytes = 64;
  if (fs::file_size(path) > kLimitBytes) return std::nullopt;
  const std::string text = read_file(path, kLimitBytes);
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool whole = error == std::errc{} && std::string_view(end) == "\n";
  return whole ? std::optional(size) : std::nullopt;
}

}  // namespace

fs::path DecompressedTexts::size_record(const CompressedFile& file) const {
  if (directory_.empty()) return {};
  return directory_ / ("size-" + to_hex(hash128(fmt::format("{} {} {}", file.path.string(),
                                                            file.stored_bytes, file.mtime_ns))));
}

std::uint64_t DecompressedTexts::decompress_to(
    const CompressedFile& file, const std::function<void(std::span<const std::byte>)>& sink) const {
  const File input = File::open_read(file.path);
  const std::uint64_t end = input.size();
  std::uint64_t at = 0;
  const auto read = [&](std::span<std::byte> block) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), end - at));
    input.read_at(at, block.first(count));
    at += count;
    return count;
  };
  return decompress(file.compression, read, end, limits_, file.path.string(), sink);
}

std::uint64_t DecompressedTexts::size(const CompressedFile& file) {
  const fs::path record = size_record(file);
  if (const auto kept = read_record(record)) {
    require<DataError>(*kept <= limits_.max_bytes,
                       "{}: expands to more than {}; raise data.max_decompressed_size, or leave it "
                       "out of the data sources",
                       file.path.string(), format_bytes(limits_.max_bytes));
    return *kept;
  }
  const std::uint64_t size = decompress_to(file, [](std::span<const std::byte>) {});
  if (!record.empty()) {
    create_directories_durably(directory_);
    write_file_atomic(record, fmt::format("{}\n", size));
  }
  return size;
}

std::shared_ptr<const File> DecompressedTexts::open(const CompressedFile& file) {
  if (open_ && open_path_ == file.path) return open_;
  const std::uint64_t expected = size(file);
  open_.reset();  // before the next one is written
  if (!directory_.empty()) create_directories_durably(directory_);
  auto text = std::make_shared<File>(
      File::create_unnamed(directory_.empty() ? fs::temp_directory_path() : directory_));
  const std::uint64_t size =
      decompress_to(file, [&](std::span<const std::byte> bytes) { text->write(bytes); });
  if (size != expected) {
    fs::remove(size_record(file));
    fail<DataError>(
        "{}: expands to {} bytes, and to {} when it was last looked at (changed?); run "
        "again",
        file.path.string(), size, expected);
  }
  open_path_ = file.path;
  open_ = std::move(text);
  return open_;
}

}  // namespace llmtrain::data
