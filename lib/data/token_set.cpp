#include "lib/data/token_set.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/source.hpp"

namespace llmtrain::data {

namespace {

constexpr std::string_view kFormat = "llmtrain-tokens";
constexpr int kVersion = 1;
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;
constexpr std::string_view kRemedy = "delete the folder and prepare the data again";

}  // namespace

std::string TokenSetIndex::to_json() const {
  nlohmann::ordered_json root;
  root["format"] = kFormat;
  root["version"] = kVersion;
  root["key"] = {{"files", key.files}, {"tokenizer", key.tokenizer}, {"options", key.options}};
  root["vocab_size"] = vocab_size;
  root["empty_documents"] = empty_documents;
  auto& shard_list = root["shards"] = nlohmann::ordered_json::array();
  for (const TokenSetShard& shard : shards) {
    shard_list.push_back({{"file", shard.file},
                          {"tokens", shard.tokens},
                          {"documents", shard.documents},
                          {"source_bytes", shard.source_bytes},
                          {"xxh3_128", shard.payload_hash}});
  }
  auto& source_list = root["sources"] = nlohmann::ordered_json::array();
  for (const TokenSetSource& source : sources) {
    source_list.push_back(
        {{"name", source.name}, {"size_bytes", source.size_bytes}, {"mtime_ns", source.mtime_ns}});
  }
  // File names are bytes: those that are not UTF-8 are stored with replacement characters.
  return root.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TokenSetIndex TokenSetIndex::from_json(std::string_view text, std::string_view name) {
  TokenSetIndex index;
  // The library converts any number to any other, and what does not fit is undefined.
  const auto whole = [&](const nlohmann::json& object, const char* member) {
    const auto& value = object.at(member);
    require<DataError>(value.is_number_integer(), "{}: '{}' is no whole number of 64 bits; {}",
                       name, member, kRemedy);
    return value;
  };
  const auto count = [&](const nlohmann::json& object, const char* member) {
    const auto value = whole(object, member);
    require<DataError>(value.is_number_unsigned(), "{}: '{}' is negative; {}", name, member,
                       kRemedy);
    return value.get<std::uint64_t>();
  };
  try {
    const nlohmann::json root = nlohmann::json::parse(text);
    require<DataError>(root.at("format") == kFormat && root.at("version") == kVersion,
                       "{}: not an index of format '{}' version {}; {}", name, kFormat, kVersion,
                       kRemedy);
    const auto& key = root.at("key");
    index.key = {key.at("files"), key.at("tokenizer"), key.at("options")};
    index.vocab_size = count(root, "vocab_size");
    index.empty_documents = count(root, "empty_documents");
    for (const auto& shard : root.at("shards")) {
      index.shards.push_back({shard.at("file"), count(shard, "tokens"), count(shard, "documents"),
                              count(shard, "source_bytes"), shard.at("xxh3_128")});
    }
    for (const auto& source : root.at("sources")) {
      index.sources.push_back({source.at("name"), count(source, "size_bytes"),
                               whole(source, "mtime_ns").get<std::int64_t>()});
    }
  } catch (const nlohmann::json::exception& e) {
    fail<DataError>("{}: not a token index: {}; {}", name, e.what(), kRemedy);
  }
  for (const TokenSetShard& shard : index.shards) {
    require<DataError>(!shard.file.empty() && shard.file.find('/') == std::string::npos &&
                           shard.file.find('\0') == std::string::npos,
                       "{}: shard file '{}' is not a plain file name; {}", name, shard.file,
                       kRemedy);
  }
  return index;
}

TokenSetIndex read_token_index(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kTokenIndexName;
  return TokenSetIndex::from_json(read_file(path, kMaxIndexBytes), path.string());
}

namespace {

/// A shard of our own, with the sources that its index names.
class ShardFile final : public TokenFile {
 public:
  ShardFile(TokenShard shard, std::shared_ptr<const std::vector<TokenSetSource>> sources)
      : shard_(std::move(shard)), sources_(std::move(sources)) {}

  std::uint64_t token_count() const override { return shard_.header().token_count; }
  std::uint64_t document_count() const override { return shard_.header().document_count; }
  std::optional<std::uint64_t> source_bytes() const override {
    return shard_.header().source_bytes;
  }
  std::uint64_t prompt_tokens() const override { return shard_.header().prompt_tokens; }
  std::string content_hash() const override { return to_hex(shard_.header().payload_hash); }

  TokenDocument document(std::uint64_t index) const override {
    const DocumentEntry entry = checked_entry(index);
    const std::uint64_t begin = shard_.token_begin(index);
    if (entry.prompt_tokens > entry.token_end - begin) {
      fail<DataError>("{}: document {} has a prompt of {} in {} tokens; {}", path(), index,
                      entry.prompt_tokens, entry.token_end - begin, kRemedy);
    }
    return {.token_begin = begin,
            .token_count = entry.token_end - begin,
            .source_bytes = entry.source_bytes,
            .prompt_tokens = entry.prompt_tokens};
  }

  std::uint64_t token_begin(std::uint64_t index) const override {
    return shard_.token_begin(index);
  }

  std::string document_name(std::uint64_t index) const override {
    const DocumentEntry entry = checked_entry(index);
    return data::document_name((*sources_)[entry.source].name, entry.source_offset,
                               entry.whole_file != 0);
  }

  void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const override {
    shard_.read_tokens(begin, out);
  }

 private:
  std::string path() const { return shard_.path().string(); }

  DocumentEntry checked_entry(std::uint64_t index) const {
    const DocumentEntry entry = shard_.document(index);
    if (entry.source >= sources_->size()) {
      fail<DataError>("{}: document {} comes from source {} of {}; {}", path(), index, entry.source,
                      sources_->size(), kRemedy);
    }
    return entry;
  }

  TokenShard shard_;
  std::shared_ptr<const std::vector<TokenSetSource>> sources_;
};

}  // namespace

TokenSet TokenSet::open(const std::filesystem::path& directory, ShardCheck check) {
  const TokenSetIndex index = read_token_index(directory);
  const auto sources = std::make_shared<const std::vector<TokenSetSource>>(index.sources);
  TokenSet set(index.vocab_size, index.key.tokenizer);
  for (const TokenSetShard& described : index.shards) {
    TokenShard shard = TokenShard::open(directory / described.file, check);
    const ShardHeader& header = shard.header();
    require<DataError>(header.token_count == described.tokens &&
                           header.document_count == described.documents &&
                           header.source_bytes == described.source_bytes &&
                           header.vocab_size == index.vocab_size &&
                           to_hex(header.payload_hash) == described.payload_hash,
                       "{}: not the shard that {} describes; {}", shard.path().string(),
                       (directory / kTokenIndexName).string(), kRemedy);
    set.add(std::make_unique<ShardFile>(std::move(shard), sources));
  }
  return set;
}

void TokenSet::add(std::unique_ptr<const TokenFile> file) {
  token_starts_.push_back(token_starts_.back() + file->token_count());
  document_starts_.push_back(document_starts_.back() + file->document_count());
  const auto bytes = file->source_bytes();
  source_bytes_ = source_bytes_ && bytes ? std::optional(*source_bytes_ + *bytes) : std::nullopt;
  prompt_tokens_ += file->prompt_tokens();
  files_.push_back(std::move(file));
}

std::vector<std::string> TokenSet::content_hashes() const {
  std::vector<std::string> hashes;
  for (const auto& file : files_) hashes.push_back(file->content_hash());
  return hashes;
}

namespace {

/// Number of the file that holds element `index`, given the files' first elements and the total.
std::size_t file_of(const std::vector<std::uint64_t>& starts, std::uint64_t index) {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), index) -
                                  starts.begin()) -
         1;
}

}  // namespace

TokenSet::Document TokenSet::document(std::uint64_t index) const {
  require(index < document_count(), "document {} of {}", index, document_count());
  const std::size_t f = file_of(document_starts_, index);
  TokenDocument document = files_[f]->document(index - document_starts_[f]);
  document.token_begin += token_starts_[f];
  return document;
}

std::uint64_t TokenSet::token_begin(std::uint64_t index) const {
  if (index == document_count()) return token_count();
  const std::size_t f = file_of(document_starts_, index);
  return token_starts_[f] + files_[f]->token_begin(index - document_starts_[f]);
}

std::string TokenSet::document_name(std::uint64_t index) const {
  require(index < document_count(), "document {} of {}", index, document_count());
  const std::size_t f = file_of(document_starts_, index);
  return files_[f]->document_name(index - document_starts_[f]);
}

void TokenSet::read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const {
  require(begin <= token_count() && out.size() <= token_count() - begin, "tokens [{}, {}) of {}",
          begin, begin + out.size(), token_count());
  while (!out.empty()) {
    const std::size_t f = file_of(token_starts_, begin);
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), token_starts_[f + 1] - begin);
    files_[f]->read_tokens(begin - token_starts_[f], out.first(count));
    begin += count;
    out = out.subspan(count);
  }
}

}  // namespace llmtrain::data
