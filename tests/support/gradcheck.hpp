#pragma once
/// Anything made of operations, run in any dtype on any table of kernels, and its gradients against
/// finite differences in fp64.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::test {

/// Rows of a small problem; every sequence is cut into documents at the same positions. Samples are
/// numbered from 3, so that a sequence and its sample are not the same number.
struct RowLayout {
  std::int64_t sequences = 1;
  std::int64_t length = 1;
  std::vector<std::int32_t> document_starts = {0};
  bool restart_positions = true;

  std::int64_t rows() const { return sequences * length; }
};

struct TrialOptions {
  DType compute = DType::f64;
  const kernels::KernelTable* table = &kernels::cpu_reference_table();
  WeightGrads weight_grads = WeightGrads::now;
  RecomputedOps recomputed_ops = {};
};

/// A CPU device with rows, a mesh of one rank and parameters.
class Place {
 public:
  Place(const RowLayout& layout, TrialOptions options);
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  ParameterStore& store() { return store_; }
  Device& device() { return device_; }
  const TrialOptions& options() const { return options_; }
  const RowMap& rows() const { return rows_; }
  /// A context in training, without tape.
  OpCtx context();

  /// A tensor of the compute dtype (or of `dtype`) with these values.
  Tensor tensor(const std::vector<double>& values, const Shape& shape);
  Tensor tensor(const std::vector<double>& values, const Shape& shape, DType dtype);
  Tensor ints(const std::vector<std::int32_t>& values);
  /// Allocates what the store holds in the compute dtype, with these values in `group`.
  void allocate_parameters(const ParameterGroup& group, const std::vector<double>& values);
  ops::RopeTables rope_tables(std::int64_t rotary_dim, double theta = 100);

 private:
  TrialOptions options_;
  Device device_;
  Mesh mesh_;
  ParameterStore store_;
  RowLayout layout_;
  RowMap rows_;
};

/// Elements of a tensor of any floating-point type.
std::vector<double> values_of(const Tensor& tensor);

/// What is differentiated: the sum of fixed random weights times `values`; or, with a loss head,
/// the sum of its loss_sum, and `values` holds the root.
struct Outputs {
  std::vector<Var> values;
  Tensor loss_sum = {};
};

using Forward = std::function<Outputs(const OpCtx&, std::span<const Var>)>;

/// `build` declares parameters in the place's store and returns the forward pass, which may
/// overwrite its inputs. Inputs and parameters have values that bf16 holds, at least 1/16 away from
/// 0.
struct Problem {
  RowLayout rows;
  std::vector<Shape> inputs;
  std::function<Forward(Place&)> build;
};

/// Name of what was computed ("output 0", "input 1", or a parameter) and its elements.
using Results = std::map<std::string, std::vector<double>>;

struct TrialResult {
  Results outputs;
  Results gradients;
  /// Largest number of bytes held during forward and backward.
  std::uint64_t peak_bytes = 0;
  /// Bytes that were held after the backward pass and not before the forward.
  std::int64_t kept_bytes = 0;
};

/// One forward and backward pass.
TrialResult run_trial(const Problem& problem, const TrialOptions& options);

/// Central differences of fourth order in fp64: every element of small tensors, a random direction
/// of all. Fails unless ||gradient - differences|| <= tolerance * max(||differences||, 1e-3 * the
/// largest of these norms).
void check_gradients(const Problem& problem, double tolerance = 1e-8);

/// Fails unless outputs and gradients of two trials have the same bits.
void check_same_bits(const TrialResult& a, const TrialResult& b);

/// Distance of the fast kernels from fp64 against that of the reference kernels in the same dtype,
/// per output and gradient: at most 4 times it, or 1e-5, in fp32; at most 2 times it in bf16.
void check_fast_path(const Problem& problem);

/// All of the above, and that deferring weight gradients changes no bit.
void check_operation(const Problem& problem);

}  // namespace llmtrain::test
