#pragma once
/// What a step's tensors are like, for whoever chooses a precision: looked at now and then.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/census.hpp"
#include "lib/autograd/op_ctx.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::engine {

/// kernels::Census of one tensor, over all ranks.
struct TensorCensus {
  std::string name;
  std::vector<double> counts;
  std::array<double, kernels::Census::kPowers> powers{};
  double amax = 0;
};

/// Of a sample of a parameter's elements, the same ones before and after a step's update.
struct UpdateSample {
  std::string name;
  double squared_update = 0, squared_value = 0;  // sums
};

/// Squared norms of a gradient that is a mean over all trained tokens of a step, and of one that is
/// a mean over some of them: how much larger the second is says how noisy they are (arXiv
/// 1812.06162, appendix A). Of the parameters whose gradients are no sums over ranks of Axis::tp.
struct NoiseSample {
  double squared_norm = 0, squared_norm_of_part = 0;
  double tokens = 0, tokens_of_part = 0;
};

struct DiagnosticsOutcome {
  /// In FP16 those of the loss times its scale. Before clipping.
  std::vector<TensorCensus> gradients;
  /// As products read them.
  std::vector<TensorCensus> weights;
  /// Inputs of linear layers, under their names, and outputs of blocks.
  std::vector<TensorCensus> activations;
  std::vector<UpdateSample> updates;
  /// Of steps of several micro-batches, without pipeline and virtual workers.
  std::optional<NoiseSample> noise;
};

/// Memory for all that a step is asked, so that asking allocates nothing (Category::activations).
class Diagnostics final : public TensorWatch {
 public:
  /// All outlive this.
  Diagnostics(Device& device, const ParameterStore& store, const Mesh& mesh, std::int64_t blocks);

  /// Before a step's first launch; waits for the device.
  void begin_step(const kernels::KernelCtx& ctx);
  void see(const OpCtx& ctx, std::string_view name, const Tensor& x, bool divided) override;
  /// Behind the first of several micro-batches, which is about `share` of a step of `tokens`
  /// trained tokens on each data rank. Gradients are as far summed as they are then.
  void see_part(const kernels::KernelCtx& ctx, double tokens, double share);
  /// Behind the backward, when gradients are complete; makes everything seen that of all ranks.
  /// Collective over the world.
  void join(const kernels::KernelCtx& ctx);
  /// Behind the update; waits for the device. Collective over the world.
  DiagnosticsOutcome end_step();

  /// "model.layers.3", under which a block's output is seen.
  static std::string name_of_block(std::int64_t block);

 private:
  /// Rows of tensors, by name.
  struct Family {
    std::vector<std::string> names;
    Tensor sums;  // FP64 [names, Census::kBins + kPowers]
    Tensor amax;  // FP64 [names, 1]
  };
  Family make_family(std::vector<std::string> names, std::string_view tag) const;
  void take(const kernels::KernelCtx& ctx, const Family& family, std::size_t row,
            const View& x) const;
  void join_parameters(const Tensor& values, ReduceOp op) const;
  std::vector<TensorCensus> read(const Family& family) const;
  /// A sample of this rank's part of each parameter that it counts.
  std::vector<std::vector<double>> sample() const;
  /// Whether this rank's own part of a parameter is one of those that make up the whole.
  bool counts(const Parameter& parameter) const;

  Device* device_;
  const ParameterStore* store_;
  const Mesh* mesh_;
  bool sliced_ = false;
  std::vector<const Parameter*> parameters_;  // trained, of the whole model
  Family gradients_, weights_, activations_;
  std::map<std::string, std::size_t, std::less<>> activation_rows_;
  Family part_;     // all gradients in one row
  Tensor updates_;  // FP64 [parameters, 2]
  Tensor scratch_;
  std::vector<std::vector<double>> before_;
  std::optional<NoiseSample> noise_;
};

}  // namespace llmtrain::engine
