// Layouts that a model, or a job, cannot have: each is refused with the nearest ones that do.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

using Overrides = std::vector<std::string>;

// `text` is said once, and with exit code 2.
void check_refused(const ProcessResult& result, std::string_view text) {
  CAPTURE(text);
  CAPTURE(result.output);
  CHECK(result.exit_code == 2);
  const std::size_t at = result.output.find(text);
  CHECK(at != std::string::npos);
  CHECK(result.output.find(text, at + 1) == std::string::npos);
  CHECK(!result.timed_out);
}

// What a run of so many ranks would refuse, without any.
void refused(int ranks, const Overrides& overrides, std::string_view text) {
  static const Workshop w;
  std::vector<std::string> command{LLMTRAIN_EXECUTABLE, "plan", "r.yaml", "--ranks",
                                   std::to_string(ranks)};
  command.insert(command.end(), overrides.begin(), overrides.end());
  CAPTURE(fmt::format("{}", fmt::join(command, " ")));
  check_refused(run_process(command, w.scratch.path().string(), {.limit_seconds = 60}), text);
}

}  // namespace

TEST_CASE("a layout that does not fit the job is refused once by all its ranks") {
  const Workshop w;
  const auto run = [&](int ranks, const Overrides& overrides, std::string_view text) {
    check_refused(w.run(ranks, overrides), text);
  };
  run(2, {"parallelism.dp=4"},
      "parallelism.dp=4: 4 takes 4 ranks, and the job has 2 ranks (start 4");
  run(1, {"parallelism.dp=4"}, "and the job has 1 rank (start 4");
  run(4, {"parallelism.tp=4"}, "cannot share 2 heads and 2 key/value heads evenly (2 can)");
  run(2, {"training.seq_leng=3"}, "training.seq_leng");
}

TEST_CASE("all that ranks cannot share is told at once, each at its place") {
  static const Workshop w;
  const auto result = run_process({LLMTRAIN_EXECUTABLE, "plan", "r.yaml", "--ranks", "36",
                                   "parallelism={tp: 4, sp: 3, sp_algo: ulysses}",
                                   "training.seq_len=15", "model.intermediate_size=33"},
                                  w.scratch.path().string(), {.limit_seconds = 60});
  check_refused(result, "r.yaml:9:65: training.global_batch_size: 4 samples, which 3 ranks");
  check_refused(result, "parallelism.tp: 4 cannot share 2 heads and 2 key/value heads evenly");
  check_refused(result, "parallelism.sp: 3 ranks cannot share 2 heads and 2 key/value heads");
}

TEST_CASE("data ranks that virtual workers do not divide among are refused with the nearest") {
  const Overrides layout{"run.determinism=layout", "training.global_batch_size=24"};
  const auto with = [&](Overrides more) {
    more.insert(more.end(), layout.begin(), layout.end());
    return more;
  };
  refused(8, with({"run.virtual_workers=4"}),
          "8 ranks do not divide the 4 virtual workers of run.determinism: layout (4 does; more "
          "ranks need more run.virtual_workers)");
  refused(6, with({"run.virtual_workers=8"}), "6 ranks do not divide the 8 virtual workers");
  refused(6, with({}),
          "6 ranks do not divide the 8 virtual workers of run.determinism: layout (4 and 8 do; "
          "more ranks need a training.global_batch_size that has more of them)");
}

TEST_CASE("check refuses what no job of a recipe's own layout could run") {
  const Workshop w;
  const auto check = [&](const Overrides& overrides) {
    std::vector<std::string> command{LLMTRAIN_EXECUTABLE, "check", "r.yaml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    return run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
  };
  CHECK(check({"parallelism={dp: 2, tp: 2, sp: 2, pp: 2}"}).exit_code == 0);
  check_refused(check({"parallelism.tp=4"}), "evenly (2 can)");
  check_refused(check({"parallelism.tp=2", "model.intermediate_size=33"}), "1 and 3 do");
  check_refused(check({"parallelism={sp: 3, sp_algo: ulysses}", "training.seq_len=15"}),
                "cannot share 2 heads and 2 key/value heads");
  check_refused(check({"parallelism.tp=2", "optimizer.name=adamw_8bit", "model.hidden_size=72",
                       "model.intermediate_size=144"}),
                "block");
}

TEST_CASE("axes that do not divide the job's ranks are refused with numbers that do") {
  refused(3, {},
          "r.yaml:9:65: training.global_batch_size: 4 samples, which 3 ranks cannot share in "
          "micro-batches of 1 (3 and 6 divide, or take 2 or 4 ranks)");
  refused(3, {"parallelism.tp=2"},
          "parallelism.tp=2: 2 does not divide the job's 3 ranks (start 2 or 4, as mpirun -n 4 "
          "llmtrain run ..., or choose sizes that do: 1 or 3)");
  refused(3, {"parallelism={dp: 2, tp: -1}"}, "parallelism.dp: 2 does not divide the job's 3");
  refused(3, {"parallelism.pp=2"}, "parallelism.pp=2: 2 does not divide the job's 3");
  refused(2, {"parallelism.tp=-1"}, "and so does parallelism.dp: -1 (its default)");
  refused(2, {"parallelism.dp=2", "parallelism.tp=2"},
          "parallelism.dp=2: 2 with tp 2 takes 4 ranks, and the job has 2");
  refused(2, {"parallelism.order=[tp, tp, dp, pp]"}, "names an axis twice");
  refused(2, {"parallelism.zero=1", "parallelism.dp_replicate=3"},
          "does not divide the 2 ranks of dp (2 does)");
  refused(6, {"training.global_batch_size=6", "parallelism.zero=1", "parallelism.dp_replicate=4"},
          "does not divide the 6 ranks of dp (3 and 6 do)");
}

TEST_CASE("heads and widths that ranks of tp or sp cannot share are refused with sizes that can") {
  const std::string wide =
      "model={architecture: llama, vocab_size: 300, hidden_size: 24, "
      "num_hidden_layers: 2, num_attention_heads: 12, num_key_value_heads: 4, "
      "intermediate_size: 36, max_position_embeddings: 64}";
  // Ranks may share a key/value head, where they divide the heads of queries.
  refused(3, {wide, "training.global_batch_size=6", "parallelism.tp=3"},
          "parallelism.tp=3: 3 cannot share 12 heads and 4 key/value heads evenly (2 or 4 can)");
  refused(6, {wide, "parallelism.tp=6"}, "(4 or 12 can)");
  refused(24, {wide, "parallelism.tp=24"}, "evenly (12 can)");
  refused(2, {"parallelism.tp=2", "model.intermediate_size=33"}, "1 and 3 do");
  refused(4, {wide, "parallelism.tp=4", "model.intermediate_size=34"}, "2 and 17 do");
  refused(3, {"parallelism={sp: 3, sp_algo: ulysses}", "training.seq_len=15"},
          "cannot share 2 heads and 2 key/value heads (parallelism.sp_algo: all_gather can");
  refused(2, {"parallelism.sp=2", "training.seq_len=14"}, "12 and 16 do");
  refused(
      4, {"parallelism={sp: 4, sp_algo: ring}", "training.seq_len=6"},
      "6 tokens do not divide by the 8 parts into which parallelism.sp 4 (ring) cut them (8 do)");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 3}"}, "does not divide parallelism.sp 4 (2 does)");
  refused(6, {"parallelism={sp: 6, sp_ulysses: 7}"}, "does not divide parallelism.sp 6 (3 does)");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 4}"}, "set sp_algo: ulysses, and leave this");
  refused(4, {"parallelism={sp: 4, sp_ulysses: 2, sp_algo: ulysses}"}, "does nothing");
}

TEST_CASE("blocks that stages of a pipeline cannot have are refused with what they can") {
  const std::string five = "model.num_hidden_layers=5";
  const std::string stages = "stages of a pipeline need a block each, and the model has ";
  refused(4, {"parallelism={dp: 1, pp: -1}"},
          "4 " + stages + "2 (2 is the most; the ranks of a job are a multiple of it)");
  refused(6, {five, "parallelism.pp=6"},
          "6 " + stages + "5 (5 is the most; the ranks of a job are a multiple of it)");
  refused(3, {five, "parallelism={pp: 3, pp_schedule: zbv}"},
          "6 " + stages + "5 (2 is the most; the ranks of a job are a multiple of it)");
  refused(2, {five, "parallelism={pp: 2, pp_schedule: interleaved_1f1b, pp_stages_per_rank: 6}"},
          "12 " + stages + "5 (take a schedule with fewer than 6 stages on a rank)");
  refused(
      2, {"parallelism.pp=2", "parallelism.pp_layers=[2,1]"},
      "3 blocks, and the model has 2 (leave it out for stages that differ by one block at most)");
  refused(2, {five, "parallelism.pp=2", "parallelism.pp_layers=[2,1,2]"},
          "3 numbers for 2 stages (give each stage one, 5 in all)");
  refused(3, {five, "parallelism.pp=3", "parallelism.pp_layers=[2,0,3]"},
          "a stage between the first and the last one has no block (only those two may have none)");
  refused(2, {five, "parallelism={pp: 2, pp_stages: [embed_tokens layers.0-1, layers.3-4 norm]}"},
          "parallelism.pp_stages: no stage has layers.2 (name every layer of the model once)");
  refused(
      2,
      {five, "parallelism={pp: 2, pp_stages: [embed_tokens layers.0-1 lm_head, layers.2-4 norm]}"},
      "lm_head is on stage 0, and only the last one can have it (name norm and lm_head on stage "
      "1)");
  refused(2, {five, "parallelism={pp: 2, pp_stages: [embed_tokens layers.0-4 norm lm_head]}"},
          "1 texts for 2 stages (give each stage one, with the names of its layers)");
  refused(2, {five, "parallelism={pp: 2, pp_layers: [2, 3], pp_stages: [a, b]}"},
          "says again what parallelism.pp_stages does (leave one of them out)");
  refused(3, {five, "parallelism={pp: 3, pp_stages: [embed_tokens layers.0-4, '', norm lm_head]}"},
          "a stage between the first and the last one has no block (only those two may have none)");
  refused(2,
          {"parallelism={pp: 2, pp_schedule: dualpipev}", "model.num_hidden_layers=4",
           "training.global_batch_size=2"},
          "dualpipev does not take 2 micro-batches on 2 ranks; take 4");
  refused(2, {"parallelism.pp_schedule=zbv"}, "does nothing: parallelism.pp is 1");
  refused(2, {"parallelism.pp=2", "parallelism.pp_stages_per_rank=2"},
          "does nothing: 1f1b has 1 on every rank");
}

TEST_CASE("experts that ranks of ep cannot share are refused with numbers of ranks that can") {
  const std::string experts = "model.architecture=mixtral";
  refused(2, {"parallelism.ep=2"}, "has nothing to share: the model has no experts");
  refused(2, {experts, "model.num_local_experts=3", "parallelism.ep=2"},
          "does not divide the model's 3 experts (1 and 3 do, where dp x sp is a multiple)");
  refused(
      16,
      {experts, "training.global_batch_size=16", "model.num_local_experts=12", "parallelism.ep=8"},
      "does not divide the model's 12 experts (6 and 12 do, where dp x sp is a multiple)");
  refused(
      16,
      {experts, "training.global_batch_size=16", "model.num_local_experts=12", "parallelism.ep=16"},
      "does not divide the model's 12 experts (12 does, where dp x sp is a multiple)");
  refused(16,
          {experts, "training.global_batch_size=16", "model.num_local_experts=12",
           "parallelism={dp: 16, ep: 8}"},
          "does not divide the model's 12 experts (4 does)");
  refused(2, {experts, "parallelism={ep: 4}"}, "does not divide the 2 ranks of dp x sp (2 does");
  refused(6, {experts, "training.global_batch_size=6", "parallelism={ep: 4}"},
          "does not divide the 6 ranks of dp x sp (3 and 6 do");
  refused(2, {experts, "parallelism={ep_room: 2}"}, "does nothing: parallelism.ep is 1");
}

TEST_CASE("blocks of FP8 that ranks of tp or sp would cut are refused with what keeps them whole") {
  const std::string block = "precision={compute: fp8, fp8: {scaling: block, include: [\"*\"]}}";
  const std::string of_tp =
      "precision.fp8.scaling: block, and parallelism.tp 2 divides "
      "model.layers.0.self_attn.q_proj.weight into parts of 8, which are not whole blocks of 128 "
      "(take another tp, or scaling: current)";
  const std::string of_sp =
      "precision.fp8.scaling: block, and parallelism.sp 2 divides sequences of 16 tokens, which "
      "are not whole blocks (take a multiple of 512 tokens, or scaling: current)";
  refused(2, {block, "parallelism.tp=2"}, of_tp);
  refused(2, {block, "parallelism.sp=2"}, of_sp);
  const Workshop w;
  check_refused(w.run(2, {block, "parallelism.tp=2"}), of_tp);
  check_refused(w.run(2, {block, "parallelism.sp=2"}), of_sp);
  // The remedies are ones: ranks of tp of which each has whole blocks, and the other scales.
  const std::string wide = "model={head_dim: 128, intermediate_size: 256}";
  for (const Overrides& overrides :
       {Overrides{block, "parallelism.tp=2", wide},
        {block, "parallelism.sp=2", "training.seq_len=512", "model.max_position_embeddings=512"},
        {"precision={compute: fp8, fp8: {scaling: current, include: [\"*\"]}}",
         "parallelism={tp: 2}"}}) {
    CAPTURE(fmt::format("{}", fmt::join(overrides, " ")));
    std::vector<std::string> command{LLMTRAIN_EXECUTABLE, "plan", "r.yaml", "--ranks", "2"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    const ProcessResult result =
        run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
    CHECK_MESSAGE(result.exit_code == 0, result.output);
  }
}

}  // namespace llmtrain::test
