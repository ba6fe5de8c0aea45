// The documents in one source file.
#include <algorithm>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"
#include "lib/data/source.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kProbeBytes = 65536;
// Latin-1 prose has a few percent of invalid bytes, compressed or binary data far more.
constexpr double kMaxInvalidShare = 0.01;
constexpr std::size_t kToleratedInvalidBytes = 8;
constexpr std::string_view kJunkRemedy =
    "leave it out of the data sources, or convert it to UTF-8 text or JSONL";

bool is_cut(const SourceFile& file) {
  return file.max_document_bytes > 0 && file.size_bytes > file.max_document_bytes;
}

std::shared_ptr<const File> open_text(const SourceFile& file) {
  if (file.compressed) return file.texts->open(*file.compressed);
  return std::make_shared<const File>(File::open_read(file.path));
}

std::string read_range(const File& file, std::uint64_t begin, std::uint64_t end) {
  std::string bytes(end - begin, '\0');
  file.read_at(begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// The place behind the first `mark` that ends after `offset` and starts before `limit`, or
/// `limit`.
std::uint64_t behind_next(const File& file, std::string_view mark, std::uint64_t offset,
                          std::uint64_t limit) {
  std::uint64_t at = offset < mark.size() ? 0 : offset - mark.size();
  while (at < limit) {
    const std::uint64_t end = std::min<std::uint64_t>(limit, at + kProbeBytes);
    const std::string bytes = read_range(file, at, end);
    const std::size_t found = bytes.find(mark);
    if (found != std::string::npos) return at + found + mark.size();
    if (end == limit) break;
    at = end - (mark.size() - 1);
  }
  return limit;
}

void refuse_junk(const SourceFile& file, std::uint64_t begin, std::string_view text) {
  const std::size_t nul = text.find('\0');
  require<DataError>(nul == text.npos, "{}: binary data: NUL byte at offset {}; {}",
                     file.path.string(), begin + nul, kJunkRemedy);
  std::size_t invalid = 0;
  std::size_t first = 0;
  for (std::size_t at = valid_utf8_prefix(text); at < text.size();) {
    const std::size_t run = invalid_utf8_prefix(text.substr(at));
    if (invalid == 0) first = at;
    invalid += run;
    at += run;
    at += valid_utf8_prefix(text.substr(at));
  }
  require<DataError>(
      invalid <= kToleratedInvalidBytes ||
          static_cast<double>(invalid) <= kMaxInvalidShare * static_cast<double>(text.size()),
      "{}: {} of {} bytes are not UTF-8, the first at offset {}; {}", file.path.string(), invalid,
      text.size(), begin + first, kJunkRemedy);
}

std::uint64_t line_number(const SourceFile& file, std::uint64_t offset) {
  const auto input = open_text(file);
  std::uint64_t lines = 1;
  for (std::uint64_t at = 0; at < offset; at += kProbeBytes) {
    const std::string bytes = read_range(*input, at, std::min(offset, at + kProbeBytes));
    lines += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  }
  return lines;
}

/// A line of JSONL.
class Line {
 public:
  Line(const SourceFile& file, std::uint64_t offset, std::string_view text)
      : file_(file), offset_(offset) {
    try {
      object_ = nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& e) {
      refuse(fmt::format("not valid JSON: {}; correct the line, or leave it out", e.what()));
    }
    if (!object_.is_object()) refuse("not a JSON object; correct the line, or leave it out");
  }

  Document document() {
    Document document{.offset = offset_, .whole_file = false, .text = {}};
    if (file_.prompt_key.empty()) {
      document.text = take(file_.text_key, "text_key");
      return document;
    }
    document.text = take(file_.prompt_key, "prompt_key");
    document.prompt_bytes = document.text.size();
    const std::string completion = take(file_.completion_key, "completion_key");
    if (completion.empty()) {
      refuse(fmt::format("'{}' is empty: there is nothing to train; leave the line out",
                         file_.completion_key));
    }
    document.text += completion;
    return document;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    fail<DataError>("{}:{}: {}", file_.path.string(), line_number(file_, offset_), problem);
  }

  /// The text under `key`, which the option called `option` names.
  std::string take(const std::string& key, std::string_view option) {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      std::string keys;
      for (const auto& item : object_.items()) {
        keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", item.key());
      }
      refuse(fmt::format("no key '{}'; the line has {}; set {} to the one that holds the text", key,
                         keys.empty() ? "none" : keys, option));
    }
    if (!found->is_string()) {
      refuse(
          fmt::format("'{}' is {}, not a string; correct the line, or set {} to a key that holds "
                      "the text",
                      key, found->type_name(), option));
    }
    return found->get<std::string>();
  }

  const SourceFile& file_;
  std::uint64_t offset_;
  nlohmann::json object_;
};

/// Calls `add(offset, line)` for each line that is not blank; line ends are not part of it.
template <class Add>
void for_each_line(std::string_view bytes, std::uint64_t begin, const Add& add) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string_view line = bytes.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != line.npos) add(begin + at, line);
    at = end + 1;
  }
}

/// Where document number `block` of a text file that is cut starts.
std::uint64_t block_start(const SourceFile& file, const File& input, std::uint64_t block) {
  const std::uint64_t size = file.size_bytes;
  if (block == 0) return 0;
  if (block > size / file.max_document_bytes) return size;
  const std::uint64_t nominal = block * file.max_document_bytes;
  // Looked for in the first quarter of the block, so that documents stay near their nominal size.
  const std::uint64_t limit = std::min(size, nominal + file.max_document_bytes / 4);
  for (const std::string_view mark : {"\n\n", "\n"}) {
    const std::uint64_t found = behind_next(input, mark, nominal, limit);
    if (found < limit) return found;
  }
  const std::string bytes = read_range(input, nominal, std::min(size, nominal + 4));
  std::size_t at = 0;
  while (at < bytes.size() && (static_cast<unsigned char>(bytes[at]) & 0xC0u) == 0x80u) ++at;
  return nominal + at;
}

}  // namespace

std::uint64_t next_document_start(const SourceFile& file, std::uint64_t offset) {
  const std::uint64_t size = file.size_bytes;
  if (offset == 0 || offset >= size) return std::min(offset, size);
  const bool is_jsonl = file.format == SourceFormat::jsonl;
  if (!is_jsonl && !is_cut(file)) return size;
  const auto input = open_text(file);
  if (is_jsonl) return behind_next(*input, "\n", offset, size);
  const std::uint64_t block = offset / file.max_document_bytes;
  const std::uint64_t start = block_start(file, *input, block);
  return start >= offset ? start : block_start(file, *input, block + 1);
}

std::vector<Document> read_documents(const SourceFile& file, std::uint64_t begin, std::uint64_t end,
                                     const std::function<bool(std::string_view name)>& wanted) {
  require<DataError>(file.format != SourceFormat::tokens,
                     "{}: a token file holds no text; name files of text", file.path.string());
  std::vector<Document> documents;
  const bool whole = file.format == SourceFormat::text && !is_cut(file);
  if (whole) {
    if (!wanted(file.name)) return documents;
    const auto input = open_text(file);
    require<DataError>(input->size() == file.size_bytes, "{}: changed while it was read",
                       file.path.string());
    documents.push_back(
        {.offset = 0, .whole_file = true, .text = read_range(*input, 0, file.size_bytes)});
    refuse_junk(file, 0, documents.back().text);
    return documents;
  }
  const std::string bytes = read_range(*open_text(file), begin, end);
  if (file.format == SourceFormat::jsonl) {
    for_each_line(bytes, begin, [&](std::uint64_t offset, std::string_view line) {
      if (!wanted(document_name(file.name, offset, false))) return;
      documents.push_back(Line(file, offset, line).document());
    });
    return documents;
  }
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t next = std::min(end, next_document_start(file, at + 1));
    if (wanted(document_name(file.name, at, false))) {
      documents.push_back(
          {.offset = at, .whole_file = false, .text = bytes.substr(at - begin, next - at)});
      refuse_junk(file, at, documents.back().text);
    }
    at = next;
  }
  return documents;
}

}  // namespace llmtrain::data
