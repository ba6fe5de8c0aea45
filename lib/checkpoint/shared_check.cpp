#include "lib/checkpoint/shared_check.hpp"

#include <system_error>

#include "lib/base/trace_threads.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::checkpoint {

namespace {

/// Tells those who take that the check has ended, however it has.
class HandoverEnd {
 public:
  explicit HandoverEnd(Handover* handover) : handover_(handover) {}
  ~HandoverEnd() {
    if (handover_ != nullptr) handover_->end();
  }
  HandoverEnd(const HandoverEnd&) = delete;
  HandoverEnd& operator=(const HandoverEnd&) = delete;

 private:
  Handover* handover_;
};

}  // namespace

SharedCheck::SharedCheck(const CheckpointStore& store, std::uint64_t step, VerifyLevel level,
                         Communicator& checkers, Handover* handover)
    : checkers_(&checkers), handover_(handover) {
  const auto work = [&store, step, level,
                     part = CheckPart{.checker = checkers.rank(),
                                      .checkers = checkers.size(),
                                      .stop = stop_.get_token(),
                                      .heeds_signals = true,
                                      .handover = handover}] {
    const HandoverEnd end(part.handover);
    return format_problems(store.verify(step, level, part));
  };
  try {
    mine_ = in_thread([work] {
      trace::name_thread("checkpoint check");
      return work();
    });
  } catch (const std::system_error&) {
    if (handover_ != nullptr) handover_->close();
    mine_ = std::async(std::launch::deferred, work);
  }
}

SharedCheck::~SharedCheck() {
  if (handover_ != nullptr) handover_->close();
  stop_.request_stop();
}

std::vector<Problem> SharedCheck::wait() {
  return join_problems(checkers_->gather_texts(mine_.get(), "check of a checkpoint"));
}

}  // namespace llmtrain::checkpoint
