#include "lib/recipe/suggest.hpp"

#include <set>

#include <doctest/doctest.h>

#include "lib/recipe/foreign_keys.hpp"

namespace llmtrain::recipe {

TEST_CASE("edit distance counts insertions, deletions, substitutions and swaps") {
  CHECK(edit_distance("", "", 5) == 0);
  CHECK(edit_distance("seed", "sed", 5) == 1);
  CHECK(edit_distance("sed", "seed", 5) == 1);
  CHECK(edit_distance("seed", "seet", 5) == 1);
  CHECK(edit_distance("seed", "sede", 5) == 1);
  CHECK(edit_distance("Seq-Len", "seq_len", 5) == 0);
  CHECK(edit_distance("kitten", "sitting", 5) == 3);
  CHECK(edit_distance("abcdef", "uvwxyz", 2) == 3);
  CHECK(edit_distance("a", std::string(1000, 'a'), 2000) == 2001);
}

TEST_CASE("the nearest name is offered only when it is near") {
  const std::vector<std::string> names = {"lr", "seq_len", "max_steps"};
  CHECK(nearest("seqlen", names) == "seq_len");
  CHECK(nearest("LR", names) == "lr");
  CHECK(nearest("lx", names).empty());
  CHECK(nearest("banana", names).empty());
  CHECK(suggestion("banana", names) == "allowed: lr, seq_len, max_steps");
  CHECK(suggestion("banana", {}).empty());
}

TEST_CASE("the table of foreign keys has each name once and only our sections as targets") {
  const std::set<std::string_view> sections = {
      "run",        "model",        "tokenizer", "data",        "training",
      "optimizer",  "lr_scheduler", "precision", "parallelism", "activation_checkpoint",
      "offload",    "checkpoint",   "eval",      "metrics",     "profiler",
      "resilience", "slurm"};
  std::set<std::string_view> names;
  for (const ForeignKey& row : foreign_keys()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK((!row.ours.empty() || !row.note.empty()));
    if (!row.ours.empty()) CHECK(sections.contains(row.ours.substr(0, row.ours.find('.'))));
  }
  for (const char* name : {"learning_rate",
                           "per_device_train_batch_size",
                           "n_layer",
                           "n_head",
                           "n_embd",
                           "tensor_model_parallel_size",
                           "gradient_accumulation_steps",
                           "sequence_len",
                           "cutoff_len",
                           "max_seq_length",
                           "save_steps",
                           "save_total_limit",
                           "warmup_steps",
                           "warmup_ratio",
                           "tensor_parallel_degree",
                           "pipeline_parallel_degree",
                           "num_train_epochs",
                           "bf16",
                           "fp16",
                           "lr_scheduler_type",
                           "resume_from_checkpoint"}) {
    CAPTURE(name);
    CHECK(names.contains(name));
  }
}

}  // namespace llmtrain::recipe
