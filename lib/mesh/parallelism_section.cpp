#include "lib/mesh/parallelism_section.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain {

void ParallelismSection::validate(recipe::Issues& issues) const {
  if (dp() == 0) issues.add(dp, "is a number of ranks", "-1 takes all ranks that there are");
}

int ParallelismSection::least_ranks() const {
  return static_cast<int>(std::max<std::int64_t>(1, dp()));
}

MeshShape ParallelismSection::shape(int ranks) const {
  MeshShape shape;
  const auto wanted = static_cast<int>(dp());
  require<RecipeError>(
      wanted == -1 || wanted == ranks,
      "parallelism.dp is {}, but the job has {} rank{}; start {} (mpirun -n {} llmtrain run ...), "
      "or set parallelism.dp=-1",
      wanted, ranks, ranks == 1 ? "" : "s", wanted, wanted);
  shape.sizes[static_cast<int>(Axis::dp)] = ranks;
  return shape;
}

}  // namespace llmtrain
