// Linked into an executable of its own, never into llmtrain: stands between the parts of a run
// (--wrap) and lets something happen to a rank there.
#include "tests/reliability/inject/phases.hpp"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "lib/checkpoint/shared_check.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/engine/engine.hpp"
#include "lib/parallel/data_ranks.hpp"
#include "lib/parallel/executor.hpp"
#include "lib/train/checkpoint_tiers.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/sampling.hpp"
#include "lib/train/saver.hpp"

namespace llmtrain::test {

namespace {

std::int64_t step_now = 0;
bool done = false;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number_of(const std::string& signal) {
  if (signal == "TERM") return SIGTERM;
  if (signal == "USR1") return SIGUSR1;
  if (signal == "USR2") return SIGUSR2;
  if (signal == "INT") return SIGINT;
  if (signal == "HUP") return SIGHUP;
  throw std::runtime_error("a test knows no signal " + signal);
}

void send_signals(std::istream& words) {
  std::string name;
  words >> name;
  for (std::string rank; words >> rank;) {
    std::ifstream file(std::filesystem::path(variable("PHASE_PIDS")) / rank);
    pid_t pid = 0;
    if (file >> pid) ::kill(pid, number_of(name));
    ::usleep(20'000);  // two of one kind that come at once are one
  }
}

void let_happen(const std::string& what) {
  std::istringstream words(what);
  std::string kind;
  words >> kind;
  if (kind == "signal") return send_signals(words);
  if (kind == "kill") ::kill(::getpid(), SIGKILL);
  if (kind == "stop") ::kill(::getpid(), SIGSTOP);
  if (kind == "segv") ::raise(SIGSEGV);
  if (kind == "abort") std::abort();
  if (kind == "exit") ::_exit(0);
  if (kind == "throw") throw std::runtime_error("thrown by a test");
  int ends[2] = {};
  char byte = 0;
  if (kind == "read" && ::pipe(ends) == 0) {
    while (::read(ends[0], &byte, 1) != 1) {
    }
  }
  volatile bool forever = kind == "spin";
  while (forever) {
  }
}

}  // namespace

void pass_phase(std::string_view phase) {
  if (done || phase != variable("PHASE_AT")) return;
  const std::string rank = variable("PHASE_RANK");
  if (rank != "all" && rank != std::to_string(this_launch().place.rank)) return;
  if (step_now != 0 && variable("PHASE_STEP") != std::to_string(step_now)) return;
  done = true;
  let_happen(variable("PHASE_DO"));
}

void enter_step(std::int64_t step) { step_now = step; }
bool in_step() { return step_now != 0; }

void leave_pid() {
  if (variable("PHASE_PIDS").empty()) return;
  std::ofstream(std::filesystem::path(variable("PHASE_PIDS")) /
                std::to_string(this_launch().place.rank))
      << ::getpid();
}

}  // namespace llmtrain::test

extern "C" {

using llmtrain::test::pass_phase;

// train::open_checkpoints(const Recipe&, const Peers&, const path&, const function<void()>&).
llmtrain::train::CheckpointTiers OPEN_CHECKPOINTS_REAL(const llmtrain::train::Recipe&,
                                                       const llmtrain::train::Peers&,
                                                       const std::filesystem::path&,
                                                       const std::function<void()>&);
llmtrain::train::CheckpointTiers OPEN_CHECKPOINTS_WRAPPED(const llmtrain::train::Recipe& recipe,
                                                          const llmtrain::train::Peers& peers,
                                                          const std::filesystem::path& directory,
                                                          const std::function<void()>& when_held) {
  llmtrain::test::leave_pid();
  peers.barrier("process ids of a test");
  pass_phase("init");
  return OPEN_CHECKPOINTS_REAL(recipe, peers, directory, when_held);
}

// train::open_corpus(const Recipe&, std::shared_ptr<const Tokenizer>).
llmtrain::train::Corpus OPEN_CORPUS_REAL(const llmtrain::train::Recipe&,
                                         std::shared_ptr<const llmtrain::data::Tokenizer>);
llmtrain::train::Corpus OPEN_CORPUS_WRAPPED(
    const llmtrain::train::Recipe& recipe,
    std::shared_ptr<const llmtrain::data::Tokenizer> tokenizer) {
  pass_phase("data");
  return OPEN_CORPUS_REAL(recipe, std::move(tokenizer));
}

// checkpoint::SharedCheck::wait(), of the checkpoint that a run goes on from.
std::vector<llmtrain::checkpoint::Problem> CHECK_REAL(llmtrain::checkpoint::SharedCheck*);
std::vector<llmtrain::checkpoint::Problem> CHECK_WRAPPED(llmtrain::checkpoint::SharedCheck* check) {
  pass_phase("check");
  return CHECK_REAL(check);
}

// train::load_checkpoint(const CheckpointStore&, std::uint64_t, Engine&, const RunIdentity&,
// Handover*).
llmtrain::train::LoopState LOAD_REAL(const llmtrain::checkpoint::CheckpointStore&, std::uint64_t,
                                     llmtrain::engine::Engine&, const llmtrain::train::RunIdentity&,
                                     llmtrain::checkpoint::Handover*);
llmtrain::train::LoopState LOAD_WRAPPED(const llmtrain::checkpoint::CheckpointStore& store,
                                        std::uint64_t step, llmtrain::engine::Engine& engine,
                                        const llmtrain::train::RunIdentity& identity,
                                        llmtrain::checkpoint::Handover* handover) {
  pass_phase("load");
  return LOAD_REAL(store, step, engine, identity, handover);
}

// parallel::Executor::run(std::span<const Action>), of a plan or a step.
void EXECUTOR_REAL(llmtrain::parallel::Executor*, std::span<const llmtrain::parallel::Action>);
void EXECUTOR_WRAPPED(llmtrain::parallel::Executor* executor,
                      std::span<const llmtrain::parallel::Action> actions) {
  if (llmtrain::test::in_step()) pass_phase("forward");
  EXECUTOR_REAL(executor, actions);
}

// Tape::backward(const OpCtx&, WeightGrads).
void BACKWARD_REAL(llmtrain::Tape*, const llmtrain::OpCtx&, llmtrain::WeightGrads);
void BACKWARD_WRAPPED(llmtrain::Tape* tape, const llmtrain::OpCtx& ctx,
                      llmtrain::WeightGrads when) {
  if (llmtrain::test::in_step()) pass_phase("backward");
  BACKWARD_REAL(tape, ctx, when);
}

// parallel::DataRanks::sum_gradients(const KernelCtx&).
void REDUCE_REAL(llmtrain::parallel::DataRanks*, const llmtrain::kernels::KernelCtx&);
void REDUCE_WRAPPED(llmtrain::parallel::DataRanks* ranks, const llmtrain::kernels::KernelCtx& ctx) {
  if (llmtrain::test::in_step()) pass_phase("reduce");
  REDUCE_REAL(ranks, ctx);
}

// Engine::evaluate(const StepBatch&).
llmtrain::engine::EvalOutcome EVALUATE_REAL(llmtrain::engine::Engine*,
                                            const llmtrain::engine::StepBatch&);
llmtrain::engine::EvalOutcome EVALUATE_WRAPPED(llmtrain::engine::Engine* engine,
                                               const llmtrain::engine::StepBatch& batch) {
  if (!engine->device().is_meta()) pass_phase("evaluation");
  return EVALUATE_REAL(engine, batch);
}

// train::write_samples(Engine&, const Peers&, const Tokenizer&, const LoopOptions&, std::uint64_t,
// std::int64_t, RunOutput*, const StopRequests&).
bool SAMPLES_REAL(llmtrain::engine::Engine&, const llmtrain::train::Peers&,
                  const llmtrain::data::Tokenizer&, const llmtrain::train::LoopOptions&,
                  std::uint64_t, std::int64_t, llmtrain::train::RunOutput*,
                  const llmtrain::train::StopRequests&);
bool SAMPLES_WRAPPED(llmtrain::engine::Engine& engine, const llmtrain::train::Peers& peers,
                     const llmtrain::data::Tokenizer& tokenizer,
                     const llmtrain::train::LoopOptions& options, std::uint64_t seed,
                     std::int64_t step, llmtrain::train::RunOutput* output,
                     const llmtrain::train::StopRequests& stop) {
  pass_phase("samples");
  return SAMPLES_REAL(engine, peers, tokenizer, options, seed, step, output, stop);
}

// train::Saver::finish(), which the end of a run calls.
void FINISH_REAL(llmtrain::train::Saver*);
void FINISH_WRAPPED(llmtrain::train::Saver* saver) {
  pass_phase("end");
  FINISH_REAL(saver);
}
}
