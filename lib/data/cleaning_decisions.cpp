#include "lib/data/cleaning_decisions.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

constexpr std::string_view kExact = "exact_duplicate", kNear = "near_duplicate";
constexpr std::string_view kOfHeldOut = "_of_held_out";

struct HashOfHash {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

/// Signatures of all documents: the held-out ones, then the others, each in the order of the
/// sources, which is the order in which documents are preferred.
struct AllSignatures {
  std::vector<DocumentSignature> documents;
  std::vector<std::uint32_t> sketches;

  void append(const SignatureShard& shard, bool held_out) {
    for (std::size_t i = 0; i < shard.documents.size(); ++i) {
      if (shard.documents[i].has(DocumentSignature::kHeldOut) != held_out) continue;
      documents.push_back(shard.documents[i]);
      const auto sketch =
          std::span(shard.sketches).subspan(i * shard.sketch_entries, shard.sketch_entries);
      sketches.insert(sketches.end(), sketch.begin(), sketch.end());
    }
  }
};

class Decider {
 public:
  Decider(std::span<const SourceFile> files, const CleaningOptions& options,
          const AllSignatures& all)
      : files_(files), options_(options), all_(all) {
    if (options.near) index_.emplace(*options.near, all.sketches);
    for (const FilterThreshold& on : options.filters) {
      decisions_.report.dropped.push_back(
          {.reason = std::string(text_filter_table()[on.filter].name)});
    }
    if (options.exact) add_reason(kExact);
    if (options.near) add_reason(kNear);
  }

  CleaningDecisions decide() {
    for (std::uint32_t d = 0; d < all_.documents.size(); ++d) judge(d);
    auto& dropped = decisions_.dropped;
    std::sort(dropped.begin(), dropped.end(), [](const auto& a, const auto& b) {
      return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
    });
    for (const DroppedDocument& document : dropped) decisions_.report.add(document);
    return std::move(decisions_);
  }

 private:
  void add_reason(std::string_view reason) {
    decisions_.report.dropped.push_back({.reason = std::string(reason)});
    decisions_.report.dropped.push_back({.reason = fmt::format("{}{}", reason, kOfHeldOut)});
  }

  void judge(std::uint32_t d) {
    const DocumentSignature& document = all_.documents[d];
    count(document);
    if (document.filter >= 0) {
      const auto row = static_cast<std::size_t>(document.filter);
      return drop(document, std::string(text_filter_table()[row].name), document.value);
    }
    if (options_.exact) {
      const auto [place, is_first] = by_hash_.try_emplace(document.hash, d);
      if (!is_first) return duplicate(d, place->second, kExact, 1.0);
    }
    if (index_ && document.has(DocumentSignature::kHasSketch)) {
      if (const auto match = index_->find(d)) {
        duplicate(d, match->document, kNear, match->similarity);
        if (!document.has(DocumentSignature::kHeldOut)) {
          // A copy of a document that goes is no copy of one that stays.
          if (options_.exact) by_hash_.erase(document.hash);
          return;
        }
      }
      index_->add(d);
    }
  }

  void count(const DocumentSignature& document) {
    CleaningReport& report = decisions_.report;
    if (document.has(DocumentSignature::kHeldOut)) {
      ++report.held_out_documents;
    } else {
      ++report.documents;
      report.bytes += document.bytes;
    }
  }

  void duplicate(std::uint32_t d, std::uint32_t partner, std::string_view kind, double similarity) {
    const DocumentSignature& document = all_.documents[d];
    CleaningReport& report = decisions_.report;
    if (document.has(DocumentSignature::kHeldOut)) {
      ++(kind == kExact ? report.held_out_exact_duplicates : report.held_out_near_duplicates);
      return;
    }
    const DocumentSignature& stays = all_.documents[partner];
    std::string reason(kind);
    if (stays.has(DocumentSignature::kHeldOut)) reason += kOfHeldOut;
    drop(document, std::move(reason), similarity, name_of(stays));
  }

  void drop(const DocumentSignature& document, std::string reason, double value,
            std::string partner = {}) {
    decisions_.dropped.push_back({.document = name_of(document),
                                  .file = document.file,
                                  .offset = document.offset,
                                  .bytes = document.bytes,
                                  .reason = std::move(reason),
                                  .value = value,
                                  .partner = std::move(partner)});
  }

  std::string name_of(const DocumentSignature& d) const {
    return document_name(files_[d.file].name, d.offset, d.has(DocumentSignature::kWholeFile));
  }

  std::span<const SourceFile> files_;
  const CleaningOptions& options_;
  const AllSignatures& all_;
  CleaningDecisions decisions_;
  std::unordered_map<Hash128, std::uint32_t, HashOfHash> by_hash_;
  std::optional<NearDuplicateIndex> index_;
};

}  // namespace

CleaningDecisions decide(std::span<const SourceFile> files, const CleaningOptions& options,
                         std::size_t shards,
                         const std::function<SignatureShard(std::size_t)>& read) {
  AllSignatures all;
  for (const bool held_out : {true, false}) {
    for (std::size_t i = 0; i < shards; ++i) all.append(read(i), held_out);
  }
  return Decider(files, options, all).decide();
}

}  // namespace llmtrain::data
