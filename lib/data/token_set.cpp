#include "lib/data/token_set.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

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

TokenSet TokenSet::open(const std::filesystem::path& directory, ShardCheck check) {
  const std::filesystem::path index_path = directory / kTokenIndexName;
  TokenSet set;
  set.index_ = TokenSetIndex::from_json(read_file(index_path, kMaxIndexBytes), index_path.string());
  set.token_starts_.push_back(0);
  set.document_starts_.push_back(0);
  for (const TokenSetShard& described : set.index_.shards) {
    TokenShard shard = TokenShard::open(directory / described.file, check);
    const ShardHeader& header = shard.header();
    require<DataError>(header.token_count == described.tokens &&
                           header.document_count == described.documents &&
                           header.source_bytes == described.source_bytes &&
                           header.vocab_size == set.index_.vocab_size &&
                           to_hex(header.payload_hash) == described.payload_hash,
                       "{}: not the shard that {} describes; {}", shard.path().string(),
                       index_path.string(), kRemedy);
    set.token_starts_.push_back(set.token_starts_.back() + header.token_count);
    set.document_starts_.push_back(set.document_starts_.back() + header.document_count);
    set.source_bytes_ += header.source_bytes;
    set.prompt_tokens_ += header.prompt_tokens;
    set.shards_.push_back(std::move(shard));
  }
  return set;
}

namespace {

/// Number of the shard that holds element `index`, given the shards' first elements and the total.
std::size_t shard_of(const std::vector<std::uint64_t>& starts, std::uint64_t index) {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), index) -
                                  starts.begin()) -
         1;
}

}  // namespace

TokenSet::Document TokenSet::document(std::uint64_t index) const {
  require(index < document_count(), "document {} of {}", index, document_count());
  const std::size_t s = shard_of(document_starts_, index);
  const std::uint64_t local = index - document_starts_[s];
  const DocumentEntry entry = shards_[s].document(local);
  const std::uint64_t begin = shards_[s].token_begin(local);
  if (entry.source >= index_.sources.size()) {
    fail<DataError>("{}: document {} comes from source {} of {}; {}", shards_[s].path().string(),
                    local, entry.source, index_.sources.size(), kRemedy);
  }
  if (entry.prompt_tokens > entry.token_end - begin) {
    fail<DataError>("{}: document {} has a prompt of {} in {} tokens; {}",
                    shards_[s].path().string(), local, entry.prompt_tokens, entry.token_end - begin,
                    kRemedy);
  }
  return {.token_begin = token_starts_[s] + begin,
          .token_count = entry.token_end - begin,
          .source_bytes = entry.source_bytes,
          .source = entry.source,
          .source_offset = entry.source_offset,
          .whole_file = entry.whole_file != 0,
          .prompt_tokens = entry.prompt_tokens};
}

std::uint64_t TokenSet::token_begin(std::uint64_t index) const {
  if (index == document_count()) return token_count();
  const std::size_t s = shard_of(document_starts_, index);
  return token_starts_[s] + shards_[s].token_begin(index - document_starts_[s]);
}

std::string TokenSet::document_name(std::uint64_t index) const {
  const Document d = document(index);
  const std::string& file = index_.sources[d.source].name;
  return d.whole_file ? file : fmt::format("{}@{}", file, d.source_offset);
}

void TokenSet::read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const {
  require(begin <= token_count() && out.size() <= token_count() - begin, "tokens [{}, {}) of {}",
          begin, begin + out.size(), token_count());
  while (!out.empty()) {
    const std::size_t s = shard_of(token_starts_, begin);
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), token_starts_[s + 1] - begin);
    shards_[s].read_tokens(begin - token_starts_[s], out.first(count));
    begin += count;
    out = out.subspan(count);
  }
}

}  // namespace llmtrain::data
