#include "lib/checkpoint/collective_save.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "lib/base/ending.hpp"
#include "lib/base/file_errors.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace_threads.hpp"
#include "lib/checkpoint/shards_text.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::checkpoint {

namespace {

constexpr std::string_view kSite = "save of a checkpoint";

/// What the others have to know of the error that ended a writer's part, in a letter.
enum class Kind : char {
  any = '+',
  lost_lock = '-',
  not_writable = 'w',
  remedied = 'r',
  source = 's'
};

/// What a writer's part came to: its text, or the error that ended it.
struct Outcome {
  ExitCode error = ExitCode::done;
  Kind kind = Kind::any;
  std::string text;
};

Kind kind_of(const std::exception& error) {
  if (dynamic_cast<const LockLost*>(&error) != nullptr) return Kind::lost_lock;
  if (dynamic_cast<const NotWritable*>(&error) != nullptr) return Kind::not_writable;
  if (dynamic_cast<const Remedied*>(&error) != nullptr) return Kind::remedied;
  if (dynamic_cast<const SourceFailed*>(&error) != nullptr) return Kind::source;
  return Kind::any;
}

/// Of storage that did not take a save.
std::string_view remedy_of(Kind kind) {
  switch (kind) {
    case Kind::remedied:  // the reason has it
      return "";
    case Kind::not_writable:
      return ". Make the directory writable for this user, or save to another one";
    case Kind::any:
    case Kind::lost_lock:
    case Kind::source:
      break;
  }
  return ". Check the disk's space, quota and health, or save to another one";
}

Outcome outcome_of(const std::function<std::string()>& part) {
  try {
    return {.text = part()};
  } catch (const std::exception& error) {
    Ending ending = ending_of(error);
    return {.error = ending.code, .kind = kind_of(error), .text = std::move(ending.text)};
  }
}

std::string to_text(const Outcome& outcome) {
  return fmt::format("{}{} {}", static_cast<char>(outcome.kind), static_cast<int>(outcome.error),
                     outcome.text);
}

Outcome parse_outcome(std::string_view text) {
  constexpr std::string_view kProblem = "a writer's account of its part cannot be read";
  require(!text.empty(), "{}", kProblem);
  int code = 0;
  const char* const end = text.data() + text.size();
  const auto [space, error] = std::from_chars(text.data() + 1, end, code);
  require(error == std::errc{} && space != end, "{}", kProblem);
  return {.error = static_cast<ExitCode>(code),
          .kind = static_cast<Kind>(text[0]),
          .text = std::string(space + 1, end)};
}

[[noreturn]] void throw_again(const Outcome& outcome, std::uint64_t step, const std::string& who) {
  if (outcome.kind == Kind::lost_lock) throw LockLost(who + outcome.text);
  if (outcome.kind == Kind::source) {
    fail<SourceFailed>("saving step {} failed: {}{}; earlier checkpoints are intact", step, who,
                       outcome.text);
  }
  if (outcome.error == ExitCode::storage) {
    fail<SaveFailed>("saving step {} failed: {}{}; earlier checkpoints are intact{}", step, who,
                     outcome.text, remedy_of(outcome.kind));
  }
  if (outcome.error == ExitCode::invalid_data) throw CheckpointError(who + outcome.text);
  throw Error(outcome.error, who + outcome.text);
}

}  // namespace

std::future<std::string> in_thread(std::function<std::string()> work) {
  return std::async(std::launch::async, std::move(work));
}

CollectiveSave::CollectiveSave(CheckpointStore& store, std::uint64_t step,
                               std::vector<TensorBox> boxes, RunState run, Communicator& writers,
                               Writing writing, WritePace::Clock::time_point pace_until,
                               std::vector<ShardHashes> hashes)
    : store_(&store),
      step_(step),
      boxes_(std::move(boxes)),
      hashes_(std::move(hashes)),
      run_(std::move(run)),
      writers_(&writers),
      writing_(writing) {
  const StoreOptions& options = store.options();
  if (options.background_share < 1 && writing == Writing::in_background) {
    pace_.emplace(options.background_share, pace_until);
  }
  store.hit("save.begin");
  std::uint64_t mine = 0;
  for (const TensorBox& box : boxes_) mine += box.size_bytes();
  for (const std::uint64_t of_writer : writers.gather_values(mine, kSite)) {
    total_bytes_ += of_writer;
  }
  const std::string directory = agree([&]() -> std::string {
    if (writers.rank() != 0) return "";
    store.check_lock();  // whose directory is full does not matter then
    const ModelExport* const model = store.model_export();
    store.check_free_space(total_bytes_ + (model != nullptr ? model->bytes : 0));
    pending_.reset(new PendingSave(store.begin_save(step)));
    store.hit("directory.created");
    return pending_->directory().string();
  })[0];
  start([this, directory] { return write(directory); });
}

void CollectiveSave::start(std::function<std::string()> work) {
  if (writing_ == Writing::by_caller) {  // it is done in get()
    work_.text = std::async(std::launch::deferred, std::move(work));
    return;
  }
  try {
    work_.text = store_->options().in_thread([this, work = std::move(work)] {
      const activity::CountedThread counted(&ticks_);
      trace::name_thread("checkpoint writer");
      return work();
    });
  } catch (const std::system_error& error) {
    // Of this writer alone: it is what its part came to, and all learn of it when they agree.
    std::promise<std::string> part;
    part.set_exception(std::make_exception_ptr(DeviceError(fmt::format(
        "cannot start a thread that writes the checkpoint: {}; allow more processes (ulimit -u), "
        "or leave out checkpoint.async",
        error.what()))));
    work_.text = part.get_future();
  }
}

std::string CollectiveSave::write(const std::string& directory) {
  const WrittenShards shards = write_shards(directory, boxes_,
                                            {.writer = writers_->rank(),
                                             .max_shard_bytes = store_->options().max_shard_bytes,
                                             .failpoint = store_->options().failpoint,
                                             .stop = work_.stop.get_token(),
                                             .pace = pace_ ? &*pace_ : nullptr},
                                            hashes_);
  store_->hit("save.written");
  return format_shards(shards);
}

std::string CollectiveSave::commit(const std::vector<std::string>& texts) {
  std::vector<WrittenShards> shards;
  for (const std::string& text : texts) {
    shards.push_back(parse_shards(text));
    written_seconds_ = std::max(written_seconds_, shards.back().seconds);
  }
  pending_->commit(run_, shards, store_->model_export(),
                   {.stop = work_.stop.get_token(), .pace = pace_ ? &*pace_ : nullptr});
  return retain();
}

std::string CollectiveSave::retain() {
  const std::vector<std::uint64_t> unknown = store_->steps_to_verify();
  if (!unknown.empty()) return std::to_string(unknown.front());
  store_->apply_retention();
  return "";
}

std::string CollectiveSave::read_back(std::uint64_t step) {
  store_->hit("verify.begin");
  return format_problems(store_->verify(step, VerifyLevel::hash_on_disk,
                                        {.checker = writers_->rank(),
                                         .checkers = writers_->size(),
                                         .stop = work_.stop.get_token(),
                                         .pace = pace_ ? &*pace_ : nullptr}));
}

bool CollectiveSave::is_idle(std::chrono::milliseconds wait) {
  return !work_.text.valid() || work_.text.wait_for(wait) != std::future_status::timeout;
}

void CollectiveSave::hurry() {
  if (pace_) pace_->hurry();
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

std::string CollectiveSave::finish_part() {
  if (!work_.text.valid()) return "";
  // Whoever has taken the lock over clears what is being written here: that is what to say then.
  const bool looks = writers_->rank() == 0 && stage_ == Stage::writing;
  try {
    std::string text = work_.text.get();
    if (looks) store_->check_lock();
    return text;
  } catch (const LockLost&) {
    throw;
  } catch (const std::exception&) {
    if (looks) store_->check_lock();
    throw;
  }
}

bool CollectiveSave::advance() {
  if (stage_ == Stage::done) return true;
  const std::vector<std::string> texts = agree([this] { return finish_part(); });
  boxes_.clear();
  const bool is_first = writers_->rank() == 0;
  if (stage_ == Stage::writing) {
    stage_ = Stage::committing;
    if (is_first) start([this, texts] { return commit(texts); });
    return false;
  }
  if (stage_ == Stage::verifying) {
    stage_ = Stage::retaining;
    if (is_first) {
      store_->note_verified(read_back_, join_problems(texts));
      start([this] { return retain(); });
    }
    return false;
  }
  if (!texts[0].empty()) {
    stage_ = Stage::verifying;
    read_back_ = std::stoull(texts[0]);
    start([this, step = read_back_] { return read_back(step); });
    return false;
  }
  stage_ = Stage::done;
  pending_.reset();
  store_->hit("save.end");
  return true;
}

}  // namespace llmtrain::checkpoint
