#include "lib/data/preparation_speed.hpp"

#include <ctime>

namespace llmtrain::data {

namespace {

/// Time of the processor that this thread took: waiting for a disk, or for a core that others use,
/// does not count.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double PreparationSpeed::seconds() const {
  double sum = 0;
  for (const StageSpeed& stage : stages) sum += stage.seconds;
  return sum;
}

PreparationSpeed measure_preparation(std::span<const SourceFile> files,
                                     const CleaningRequest& request) {
  const CleaningOptions& options = request.options;
  const CleaningOptions exact{.exact = options.exact, .normalize = options.normalize};
  const CleaningOptions near{.near = options.near};
  PreparationSpeed speed{.stages = {{"read"}}};
  std::vector<Document> documents;
  std::vector<std::uint32_t> sketch(options.near ? options.near->permutations : 0);
  Hash128 hash;
  const auto time = [&](StageSpeed& stage, const auto& body) {
    const double start = thread_seconds();
    for (const Document& document : documents) body(document.text);
    stage.seconds += thread_seconds() - start;
  };
  StageSpeed filtering{"filters"}, hashing{"exact"}, sketching{"near"};
  for (const ShardPlan& plan : plan_shards(files, request.shard_source_bytes)) {
    const double start = thread_seconds();
    documents.clear();
    for (const FileRange& range : plan) {
      for (Document& document : read_documents(files[range.file], range.begin, range.end,
                                               [](std::string_view) { return true; })) {
        documents.push_back(std::move(document));
      }
    }
    speed.stages[0].seconds += thread_seconds() - start;
    speed.documents += documents.size();
    for (const Document& document : documents) speed.bytes += document.text.size();
    if (!options.filters.empty()) {
      time(filtering, [&](std::string_view text) { filter_text(text, options.filters); });
    }
    if (exact.exact) {
      time(hashing, [&](std::string_view text) { sign_text(text, exact, hash, {}); });
    }
    if (near.near) {
      time(sketching, [&](std::string_view text) { sign_text(text, near, hash, sketch); });
    }
  }
  if (!options.filters.empty()) speed.stages.push_back(filtering);
  if (exact.exact) speed.stages.push_back(hashing);
  if (near.near) speed.stages.push_back(sketching);
  return speed;
}

}  // namespace llmtrain::data
