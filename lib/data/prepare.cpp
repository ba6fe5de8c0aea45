#include "lib/data/prepare.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/data/parallel.hpp"
#include "lib/data/shard_plan.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

// Part of the key: raised when the same input would give other documents or shards.
constexpr std::uint32_t kPrepareVersion = 1;
constexpr std::string_view kShardPrefix = "shard-";
constexpr std::string_view kShardSuffix = ".tokens";

std::string shard_file_name(std::size_t index) {
  return fmt::format("{}{:05}{}", kShardPrefix, index, kShardSuffix);
}

/// Identifies a shard by everything that decides its content.
std::uint64_t shard_build_key(const TokenSetKey& key, std::size_t index) {
  return hash64(fmt::format("{}/{}/{}/{}", key.files, key.tokenizer, key.options, index));
}

struct LocatedDocument {
  std::uint32_t file = 0;
  Document document;
  std::vector<std::int32_t> tokens = {};
  std::size_t prompt_tokens = 0;
};

class ShardMaker {
 public:
  ShardMaker(std::span<const SourceFile> files, const Tokenizer& tokenizer,
             const PrepareOptions& options)
      : files_(files), tokenizer_(tokenizer), options_(options) {}

  ShardHeader make(const ShardPlan& plan, std::uint64_t build_key, const fs::path& path) const {
    std::vector<LocatedDocument> documents;
    for (const FileRange& range : plan) {
      for (Document& document : read(range)) {
        documents.push_back({.file = range.file, .document = std::move(document)});
      }
    }
    parallel_for(documents.size(), [&](std::size_t i) { encode(documents[i]); });
    ShardBuilder builder(static_cast<std::uint64_t>(tokenizer_.vocab_size()),
                         tokenizer_.fingerprint(), build_key);
    for (const LocatedDocument& d : documents) {
      if (d.tokens.empty()) {
        builder.skip_empty();
        continue;
      }
      builder.add({.source_bytes = d.document.text.size() - d.document.prompt_bytes,
                   .source_offset = d.document.offset,
                   .source = d.file,
                   .whole_file = d.document.whole_file ? 1u : 0u,
                   .prompt_tokens = d.prompt_tokens},
                  d.tokens);
    }
    return builder.write(path);
  }

 private:
  std::vector<Document> read(const FileRange& range) const {
    const SourceFile& file = files_[range.file];
    auto documents = read_documents(file, range.begin, range.end, [&](std::string_view name) {
      return options_.part == Part::all ||
             is_held_out(name, options_.held_out) == (options_.part == Part::held_out);
    });
    if (options_.cleaning) {
      std::erase_if(documents, [&](const Document& document) {
        return options_.cleaning->drops(file, document.offset);
      });
    }
    return documents;
  }

  // Prompt and completion each by itself: a token that crossed the border would be half trained,
  // and a model in use has to go on behind the prompt's own tokens.
  void encode(LocatedDocument& d) const {
    const std::string_view text = d.document.text;
    try {
      if (d.document.prompt_bytes > 0) {
        tokenizer_.encode(text.substr(0, d.document.prompt_bytes), d.tokens);
        d.prompt_tokens = d.tokens.size();
      }
      tokenizer_.encode(text.substr(d.document.prompt_bytes), d.tokens);
    } catch (const DataError& e) {
      fail<DataError>(
          "{}: {}",
          document_name(files_[d.file].path.string(), d.document.offset, d.document.whole_file),
          e.what());
    }
  }

  std::span<const SourceFile> files_;
  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
};

/// The header of a finished shard of the same build; empty if there is none.
std::optional<ShardHeader> finished_shard(const fs::path& path, std::uint64_t build_key,
                                          ShardCheck check) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    const TokenShard shard = TokenShard::open(path, check);
    if (shard.header().build_key == build_key) return shard.header();
  } catch (const OtherShardVersion&) {
    // Said once for the whole set by open_or_prepare.
  } catch (const DataError& e) {
    log::info("making a shard again: {}", e.what());
  }
  return std::nullopt;
}

/// Makes those of the share that are not there; `headers` gets theirs.
void make_shards(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                 const PrepareOptions& options, const Share& share, const fs::path& directory,
                 const std::vector<ShardPlan>& plans, const TokenSetKey& key,
                 std::vector<std::optional<ShardHeader>>& headers) {
  const ShardMaker maker(files, tokenizer, options);
  const auto source_bytes = [](const ShardPlan& plan) {
    std::uint64_t bytes = 0;
    for (const FileRange& range : plan) bytes += range.end - range.begin;
    return bytes;
  };
  PrepareProgress progress;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!share.has(i)) continue;
    ++progress.shards_total;
    progress.bytes_total += source_bytes(plans[i]);
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!share.has(i)) continue;
    stop_if_asked("preparing the data");
    const fs::path path = directory / shard_file_name(i);
    const std::uint64_t build_key = shard_build_key(key, i);
    headers[i] = finished_shard(path, build_key, ShardCheck::payload);
    if (!headers[i]) headers[i] = maker.make(plans[i], build_key, path);
    progress.bytes_done += source_bytes(plans[i]);
    progress.tokens += headers[i]->token_count;
    ++progress.shards_done;
    if (options.progress) options.progress(progress);
  }
}

/// Removes an index of another set: it does not describe the shards that replace its own. One of
/// this set does whatever happens, because its shards are always made with the same bytes.
void remove_other_index(const fs::path& directory, const TokenSetKey& key) {
  const fs::path path = directory / kTokenIndexName;
  if (!fs::exists(path)) return;
  try {
    if (TokenSetIndex::from_json(read_file(path), path.string()).key == key) return;
  } catch (const DataError&) {
    // Said by open_or_prepare.
  }
  fs::remove(path);
}

/// Removes shards that are not in `index`.
void remove_other_shards(const fs::path& directory, const TokenSetIndex& index) {
  std::set<std::string> ours;
  for (const TokenSetShard& shard : index.shards) ours.insert(shard.file);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.starts_with(kShardPrefix) && name.ends_with(kShardSuffix);
    if (is_shard && !ours.contains(name)) fs::remove(entry.path());
  }
}

/// Throws what is wrong with the lines of the held-out part, if anything is.
void read_held_out(std::span<const SourceFile> files, const PrepareOptions& options) {
  for (const ShardPlan& plan : plan_shards(files, options.shard_source_bytes)) {
    for (const FileRange& range : plan) {
      read_documents(files[range.file], range.begin, range.end,
                     [&](std::string_view name) { return is_held_out(name, options.held_out); });
    }
  }
}

[[noreturn]] void refuse_empty(std::span<const SourceFile> files, const PrepareOptions& options) {
  // A line that is no document at all is the nearer cause, and this part has not read it.
  if (options.part == Part::training) read_held_out(files, options);
  const std::string names = files.size() == 1 ? files.front().path.string()
                                              : fmt::format("{} files from {} on", files.size(),
                                                            files.front().path.string());
  if (options.part == Part::held_out) {
    fail<DataError>(
        "the held-out rule (hash of the name modulo {} is {}) selects no document with "
        "text of {}; use a smaller data.eval_modulus, or cut large text files into documents by "
        "max_document_bytes of data.sources (a run needs one: it ends with an evaluation, without "
        "eval.interval too)",
        options.held_out.modulus, options.held_out.remainder, names);
  }
  if (options.cleaning && std::any_of(files.begin(), files.end(), [&](const SourceFile& file) {
        return options.cleaning->drops_of(file);
      })) {
    fail<DataError>("{}: data.cleaning leaves no document to train on ({}); loosen it", names,
                    options.cleaning->report().reasons());
  }
  const bool training = options.part == Part::training;
  fail<DataError>("{}: no document with text{}; check the data sources{}", names,
                  training ? " outside the held-out part" : "",
                  training ? " and data.eval_modulus" : "");
}

std::string part_name(Part part) {
  return part == Part::all ? "all" : part == Part::training ? "training" : "held_out";
}

/// Says what differs between the set that is there and the one that is wanted.
std::string staleness(const TokenSetIndex& there, const TokenSetKey& key,
                      std::span<const SourceFile> files) {
  if (there.key.tokenizer != key.tokenizer) return "the tokenizer changed";
  if (there.sources.size() != files.size()) {
    return fmt::format("the sources have {} files, they had {}", files.size(),
                       there.sources.size());
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    const TokenSetSource now{files[i].name, files[i].size_bytes, files[i].mtime_ns};
    if (there.sources[i] != now) return fmt::format("{} changed", files[i].path.string());
  }
  return "the data options changed";
}

}  // namespace

TokenSetKey token_set_key(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                          const PrepareOptions& options) {
  Hasher128 contents;
  Hasher128 rules;
  hash_files(files, contents, rules);
  if (options.cleaning) rules.update(options.cleaning->key());
  const bool split = options.part != Part::all;
  rules.update(fmt::format("{} {} {} {} {}", kPrepareVersion, part_name(options.part),
                           split ? options.held_out.modulus : 0,
                           split ? options.held_out.remainder : 0, options.shard_source_bytes));
  return {to_hex(contents.digest()), fmt::format("{:016x}", tokenizer.fingerprint()),
          to_hex(rules.digest())};
}

PrepareStep prepare_share(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                          const PrepareOptions& options, const Share& share,
                          const fs::path& directory) {
  create_directories_durably(directory);
  const TokenSetKey key = token_set_key(files, tokenizer, options);
  remove_other_index(directory, key);
  const std::vector<ShardPlan> plans = plan_shards(files, options.shard_source_bytes);
  std::vector<std::optional<ShardHeader>> headers(plans.size());
  make_shards(files, tokenizer, options, share, directory, plans, key, headers);
  PrepareStep step{.shards = plans.size()};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (headers[i]) continue;
    headers[i] =
        finished_shard(directory / shard_file_name(i), shard_build_key(key, i), ShardCheck::header);
    if (!headers[i]) step.missing.push_back(i);
  }
  if (!step.missing.empty()) return step;

  TokenSetIndex index{.key = key, .vocab_size = static_cast<std::uint64_t>(tokenizer.vocab_size())};
  std::uint64_t tokens = 0;
  for (const SourceFile& file : files) {
    index.sources.push_back({file.name, file.size_bytes, file.mtime_ns});
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const ShardHeader& header = *headers[i];
    index.shards.push_back({shard_file_name(i), header.token_count, header.document_count,
                            header.source_bytes, to_hex(header.payload_hash)});
    index.empty_documents += header.empty_documents;
    tokens += header.token_count;
  }
  if (tokens == 0) refuse_empty(files, options);
  remove_other_shards(directory, index);
  write_file_atomic(directory / kTokenIndexName, index.to_json());
  return step;
}

void prepare(std::span<const SourceFile> files, const Tokenizer& tokenizer,
             const PrepareOptions& options, const fs::path& directory) {
  prepare_share(files, tokenizer, options, {}, directory);
}

TokenSet open_or_prepare(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                         const PrepareOptions& options, const fs::path& directory,
                         ShardCheck check) {
  const TokenSetKey key = token_set_key(files, tokenizer, options);
  std::string reason = "not prepared yet";
  if (fs::exists(directory / kTokenIndexName)) {
    try {
      TokenSet set = TokenSet::open(directory, check);
      const TokenSetIndex index = read_token_index(directory);
      if (index.key == key) return set;
      reason = staleness(index, key, files);
    } catch (const DataError& e) {
      reason = e.what();
    }
  }
  log::info("{}: tokenising {} files ({})", directory.string(), files.size(), reason);
  prepare(files, tokenizer, options, directory);
  return TokenSet::open(directory, check);
}

}  // namespace llmtrain::data
