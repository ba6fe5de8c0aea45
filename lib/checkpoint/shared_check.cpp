#include "lib/checkpoint/shared_check.hpp"

#include <system_error>

#include "lib/checkpoint/store.hpp"

namespace llmtrain::checkpoint {

SharedCheck::SharedCheck(const CheckpointStore& store, std::uint64_t step, VerifyLevel level,
                         Communicator& checkers)
    : checkers_(&checkers) {
  const auto work = [&store, step, level,
                     part = CheckPart{.checker = checkers.rank(),
                                      .checkers = checkers.size(),
                                      .stop = stop_.get_token(),
                                      .heeds_signals = true}] {
    return format_problems(store.verify(step, level, part));
  };
  try {
    mine_ = in_thread(work);
  } catch (const std::system_error&) {
    mine_ = std::async(std::launch::deferred, work);
  }
}

std::vector<Problem> SharedCheck::wait() {
  return join_problems(checkers_->gather_texts(mine_.get(), "check of a checkpoint"));
}

}  // namespace llmtrain::checkpoint
