#include "lib/mesh/parallelism_section.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain {

void ParallelismSection::validate(recipe::Issues& issues) const {
  if (dp() == 0) issues.add(dp, "is a number of ranks", "-1 takes all ranks that there are");
  if (zero() > 1) {
    issues.add(zero, "this build keeps gradients and parameters on every rank",
               "0 and 1 are there");
  }
  if (tp_sequence_parallel() && tp() == 1) {
    issues.add(tp_sequence_parallel, "has nobody to share tokens with: parallelism.tp is 1",
               "set parallelism.tp, or leave this out");
  }
}

int ParallelismSection::least_ranks() const {
  return static_cast<int>(std::max<std::int64_t>(1, dp()) * tp());
}

MeshShape ParallelismSection::shape(int ranks) const {
  MeshShape shape;
  const auto share = static_cast<int>(tp());
  const std::string_view plural = ranks == 1 ? "" : "s";
  const int above = (ranks + share - 1) / share * share;
  require<RecipeError>(ranks % share == 0,
                       "parallelism.tp is {}, which does not divide the job's {} rank{}; start {} "
                       "(mpirun -n {} llmtrain run ...), or choose a size that does",
                       share, ranks, plural, above, above);
  const auto wanted = static_cast<int>(dp());
  const int needed = wanted * share;
  require<RecipeError>(
      wanted == -1 || needed == ranks,
      "parallelism.dp is {}{}, but the job has {} rank{}; start {} (mpirun -n {} llmtrain run "
      "...), or set parallelism.dp=-1",
      wanted, share == 1 ? "" : fmt::format(" with parallelism.tp {}", share), ranks, plural,
      needed, needed);
  shape.sizes[static_cast<int>(Axis::dp)] = ranks / share;
  shape.sizes[static_cast<int>(Axis::tp)] = share;
  shape.tp_sequence_parallel = tp_sequence_parallel();
  return shape;
}

}  // namespace llmtrain
