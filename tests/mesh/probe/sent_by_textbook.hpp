#pragma once
/// What ranks of mesh_probe hand to MPI, by kind of collective and group of ranks, against the
/// formulas of papers, which ask no plan (tests/support/textbook).

#include <map>
#include <string>
#include <vector>

#include "tests/support/textbook/textbook.hpp"

namespace llmtrain::test {

class SentByTextbook {
 public:
  /// Of a rank in a run whose steps have so many samples.
  SentByTextbook(const engine::EngineOptions& options, const MeshShape& mesh, int rank,
                 std::int64_t samples_per_step);

  /// Collective over `all`, the world. In a step this rank has handed `sent` to MPI, by "kind on
  /// group", and of each layer's choices so many were of experts on other ranks. All data ranks of
  /// one place along tp and pp together must have sent what the formulas say, and of sums over
  /// those axes, whose elements they do not divide, these ranks together, too. InternalError naming
  /// all that differs.
  void check(Communicator& all, const std::map<std::string, double>& sent,
             std::vector<double> rows_elsewhere);
  int steps() const { return steps_; }

 private:
  TextbookRun run_;
  int tp_, pp_;
  int steps_ = 0;
};

}  // namespace llmtrain::test
