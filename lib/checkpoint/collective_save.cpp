#include "lib/checkpoint/collective_save.hpp"

#include <charconv>

#include "lib/base/require.hpp"
#include "lib/checkpoint/shards_text.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::checkpoint {

namespace {

constexpr std::string_view kSite = "save of a checkpoint";

/// What a writer's part came to: its text, or the error that ended it.
struct Outcome {
  ExitCode error = ExitCode::done;
  std::string text;
};

Outcome outcome_of(const std::function<std::string()>& part) {
  try {
    return {.text = part()};
  } catch (const Error& error) {
    return {error.exit_code(), error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::runtime, error.what()};
  }
}

std::string to_text(const Outcome& outcome) {
  return fmt::format("{} {}", static_cast<int>(outcome.error), outcome.text);
}

Outcome parse_outcome(std::string_view text) {
  int code = 0;
  const char* const end = text.data() + text.size();
  const auto [space, error] = std::from_chars(text.data(), end, code);
  require(error == std::errc{} && space != end, "a writer's account of its part cannot be read");
  return {static_cast<ExitCode>(code), std::string(space + 1, end)};
}

[[noreturn]] void throw_again(const Outcome& outcome, std::uint64_t step, const std::string& who) {
  if (outcome.error == ExitCode::storage) {
    fail<StorageError>(
        "saving step {} failed: {}{}; earlier checkpoints are intact. Check the disk's "
        "space, quota and health, or save to another one",
        step, who, outcome.text);
  }
  if (outcome.error == ExitCode::invalid_data) throw CheckpointError(who + outcome.text);
  throw Error(outcome.error, who + outcome.text);
}

}  // namespace

CollectiveSave::CollectiveSave(CheckpointStore& store, std::uint64_t step,
                               std::vector<TensorBox> boxes, RunState run, Communicator& writers,
                               Writing writing)
    : store_(&store),
      step_(step),
      boxes_(std::move(boxes)),
      run_(std::move(run)),
      writers_(&writers),
      writing_(writing) {
  store.hit("save.begin");
  std::uint64_t mine = 0;
  for (const TensorBox& box : boxes_) mine += box.size_bytes();
  std::uint64_t bytes = 0;
  for (const std::uint64_t of_writer : writers.gather_values(mine, kSite)) bytes += of_writer;
  const std::string directory = agree([&]() -> std::string {
    if (writers.rank() != 0) return "";
    store.check_free_space(bytes);
    pending_.reset(new PendingSave(store.begin_save(step)));
    store.hit("directory.created");
    return pending_->directory().string();
  })[0];
  start([this, directory] { return write(directory); });
}

void CollectiveSave::start(std::function<std::string()> work) {
  // Without a thread it is done in get().
  const bool thread = writing_ == Writing::in_background;
  work_.text = std::async(thread ? std::launch::async : std::launch::deferred, std::move(work));
}

std::string CollectiveSave::write(const std::string& directory) {
  const WrittenShards shards = write_shards(directory, boxes_,
                                            {.writer = writers_->rank(),
                                             .max_shard_bytes = store_->options().max_shard_bytes,
                                             .failpoint = store_->options().failpoint,
                                             .stop = work_.stop.get_token()});
  store_->hit("save.written");
  return format_shards(shards);
}

std::string CollectiveSave::commit(const std::vector<std::string>& texts) {
  std::vector<WrittenShards> shards;
  for (const std::string& text : texts) shards.push_back(parse_shards(text));
  pending_->commit(run_, shards);
  store_->apply_retention();
  return "";
}

bool CollectiveSave::is_idle(std::chrono::milliseconds wait) {
  return !work_.text.valid() || work_.text.wait_for(wait) != std::future_status::timeout;
}

std::vector<std::string> CollectiveSave::agree(const std::function<std::string()>& mine) {
  std::vector<std::string> texts = writers_->gather_texts(to_text(outcome_of(mine)), kSite);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    Outcome outcome = parse_outcome(texts[rank]);
    if (outcome.error != ExitCode::done) {
      stage_ = Stage::done;
      pending_.reset();
      throw_again(outcome, step_, writers_->size() == 1 ? "" : fmt::format("rank {}: ", rank));
    }
    texts[rank] = std::move(outcome.text);
  }
  return texts;
}

bool CollectiveSave::advance() {
  if (stage_ == Stage::done) return true;
  const std::vector<std::string> texts =
      agree([this] { return work_.text.valid() ? work_.text.get() : std::string(); });
  boxes_.clear();
  if (stage_ == Stage::writing) {
    stage_ = Stage::committing;
    if (writers_->rank() == 0) start([this, texts] { return commit(texts); });
    return false;
  }
  stage_ = Stage::done;
  pending_.reset();
  store_->hit("save.end");
  return true;
}

}  // namespace llmtrain::checkpoint
