#include "lib/train/checked_load.hpp"

#include <exception>

#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/checkpoint/handover.hpp"
#include "lib/checkpoint/shared_check.hpp"

namespace llmtrain::train {

CheckedLoad load_while_checking(const checkpoint::CheckpointStore& store, std::uint64_t step,
                                engine::Engine& engine, const RunIdentity& identity,
                                Communicator& checkers) {
  checkpoint::Handover handover(checkers.rank(), checkers.size());
  checkpoint::SharedCheck check(store, step, checkpoint::VerifyLevel::hash, checkers, &handover);
  CheckedLoad loaded;
  std::exception_ptr failed;  // of which the check may know the reason
  try {
    loaded.state = load_checkpoint(store, step, engine, identity, &handover);
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {
    failed = std::current_exception();
  }
  handover.close();
  loaded.problems = check.wait();
  if (!loaded.problems.empty()) {
    loaded.state.reset();
    return loaded;
  }
  if (failed) std::rethrow_exception(failed);
  require(handover.is_complete(), "parts of the checkpoint of step {} were checked, and not loaded",
          step);
  return loaded;
}

}  // namespace llmtrain::train
