#include "lib/engine/expert_room.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"

namespace llmtrain::engine {

ExpertRoom::ExpertRoom(Device& device, const models::Decoder& decoder, const Mesh& mesh)
    : needed_(&decoder.router_needed()), mesh_(&mesh) {
  for (auto& read : reads_) read = device.make_host_read(needed_->view().bytes());
}

void ExpertRoom::clear(const kernels::KernelCtx& ctx) const {
  kernels::launch(ctx, kernels::Fill{.y = *needed_, .value = 0});
}

void ExpertRoom::join_all() const {
  // Each stage has noted what its own blocks needed.
  for (Communicator* group : {&mesh_->axis(Axis::pp), &mesh_->data()}) {
    if (group->size() > 1) group->all_reduce(*needed_, ReduceOp::max, "room for experts").wait();
  }
}

void ExpertRoom::start(int slot) {
  reads_[static_cast<std::size_t>(slot)]->start(needed_->view().data);
}

void ExpertRoom::check(int slot) {
  if (needed_->device().is_meta()) return;
  require_enough(reads_[static_cast<std::size_t>(slot)]->wait());
}

void ExpertRoom::check_evaluation() const {
  join_all();
  if (needed_->device().is_meta()) return;
  std::vector<std::byte> needed(needed_->view().bytes());
  needed_->device().copy_to_host(needed, *needed_);
  require_enough(needed);
}

void ExpertRoom::require_enough(std::span<const std::byte> needed) const {
  std::vector<double> of_blocks(needed.size() / sizeof(double));
  std::memcpy(of_blocks.data(), needed.data(), needed.size());
  const auto worst = std::ranges::max_element(of_blocks);
  require<DoesNotFitError>(
      *worst == 0,
      "experts of layer {} of those that have some, counted from 0: a rank had {:.2f} times their "
      "even share of a micro-batch's tokens for one other rank's experts, with "
      "parallelism.ep_room {}; raise it to {:.2f} or more, or leave it out. That step changed "
      "nothing, and nothing later is saved",
      worst - of_blocks.begin(), *worst, mesh_->shape().ep_room, std::ceil(100 * *worst) / 100);
}

}  // namespace llmtrain::engine
