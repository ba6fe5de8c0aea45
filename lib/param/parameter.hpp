#pragma once
/// Parameters: logical tensors with a compute copy, a master copy and a gradient sink.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/param/placement.hpp"
#include "lib/tensor/device.hpp"
#include "lib/tensor/stochastic_rounding.hpp"

namespace llmtrain {

/// How a parameter's first values come about. Normal values are Philox normals counted by the
/// logical row-major index, so they do not depend on the layout.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  double std = 0;
};

/// What the optimizer's groups ask about. `head` is an output head of its own; a tied one is the
/// embedding.
enum class ParameterRole : std::uint8_t { matrix, embedding, head, norm, bias };
std::string_view to_string(ParameterRole role);

/// Declares a parameter; nothing is allocated.
struct ParameterSpec {
  std::string name;  // Hugging Face Llama style, e.g. model.layers.3.self_attn.q_proj.weight
  Shape shape;       // global
  ParameterRole role = ParameterRole::matrix;
  Initializer init;
  Placement placement{};
  /// Ranks of Axis::pp that have it, ascending; empty: all. The others know its name and shape
  /// alone. Where several have it, each makes a term of its gradient.
  std::vector<int> holders = {};
  /// False: a value that no gradient changes, as a correction bias of a router. It has no sink and
  /// no optimizer state, every rank of its stage has all of it, and its dtype is the masters'.
  bool trained = true;
  /// Of a projection to heads whose logits are formed from them (queries, keys): rows of a head.
  std::int64_t rows_per_head = 1;
  /// The weight of a linear layer [out, in], whose products may be quantized.
  bool linear = false;
};

/// How the values that the optimizer works on are held beside a narrower compute copy.
enum class MasterForm : std::uint8_t {
  whole,      // a tensor of their own
  remainder,  // what the compute copy lacks (lib/tensor/split_master.hpp)
  none,       // not at all: an update's result is rounded to the compute copy
};

/// Elements of a rank's box of a parameter, one after the other in its own row-major order.
struct ParameterSlice {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

/// Where a rank's part of a logical tensor lies: the elements `own` of `box`, in the box's
/// row-major order.
struct TensorPlace {
  Shape global_shape;
  Box box;
  ParameterSlice own;
};

/// Of what ZeRO divides beside masters and optimizer states.
struct Shards {
  bool gradients = false;   // stage 2
  bool parameters = false;  // stage 3
  /// Parameters that one rank owns alone are whole only while somebody works with them, too.
  bool parameters_of_one = false;
};

/// One logical tensor as this rank holds it. All tensors have the local shape, or are undefined
/// where this rank holds nothing of it. The master is FP32
/// (FP64 when computing in fp64), in one of three forms.
class Parameter {
 public:
  /// As rank `stage_rank` of Axis::pp has it.
  Parameter(ParameterSpec spec, Box box, int stage_rank);

  const std::string& name() const { return spec_.name; }
  const Shape& global_shape() const { return spec_.shape; }
  ParameterRole role() const { return spec_.role; }
  std::int64_t rows_per_head() const { return spec_.rows_per_head; }
  bool is_linear() const { return spec_.linear; }
  const Initializer& initializer() const { return spec_.init; }
  /// Without it only the values are there: neither gradients nor slices.
  bool is_trained() const { return spec_.trained; }
  const Placement& placement() const { return spec_.placement; }
  /// Which data ranks hold the same as this one.
  DataHolders holders_of_data() const { return spec_.placement.holders(); }
  const Box& box() const { return box_; }
  /// Ranks of Axis::pp, where not all of them have it.
  std::span<const int> holders() const { return spec_.holders; }
  bool is_local() const { return local_; }
  /// This rank is the first of the holders.
  bool is_first_held() const { return first_held_; }

  /// Where Shards divide it, defined while its group is open.
  const Tensor& compute() const { return compute_; }
  /// own_compute() is undefined, and so is master() where they are one; what they would hold is
  /// where ParameterStore::keep_in() says.
  bool copy_is_elsewhere() const { return copy_elsewhere_; }
  /// MasterForm::whole, else undefined: of own_slice() alone, in own_shape(). The same storage as
  /// own_compute() when the dtypes agree.
  const Tensor& master() const { return master_; }
  /// MasterForm::remainder: uint16, with compute() the master; of own_slice() as the master is.
  /// Else undefined.
  const Tensor& remainder() const { return remainder_; }
  /// Of the values that are written and read, and of an update's arithmetic.
  DType master_dtype() const { return master_dtype_; }
  bool has_master() const { return form_ != MasterForm::none; }
  MasterForm master_form() const { return form_; }
  /// master() and remainder() of a separate copy are undefined; what they would hold is there, too.
  bool master_is_elsewhere() const { return master_elsewhere_; }
  /// Of what is kept beside a separate copy: master() or remainder().
  DType kept_master_dtype() const {
    return form_ == MasterForm::remainder ? DType::u16 : master_dtype_;
  }
  /// What a checkpoint keeps: the master's, or without one the compute copy's.
  DType stored_dtype() const { return has_master() ? master_dtype_ : compute_dtype_; }
  /// MasterForm::none: how updates round; else to nearest.
  const StochasticRounding& rounding() const { return rounding_; }
  /// As compute().
  const Tensor& grad() const { return grad_; }
  DType compute_dtype() const { return compute_dtype_; }
  /// compute() is a rounded copy, not the master itself.
  bool has_separate_copy() const {
    return form_ != MasterForm::whole || master_dtype_ != compute_dtype_;
  }

  /// What this rank's optimizer updates: with ZeRO a part of the box, perhaps nothing; the data
  /// ranks' slices follow one another in their order.
  const ParameterSlice& own_slice() const { return own_; }
  bool is_sliced() const { return !slice_counts_.empty(); }
  TensorPlace own_place() const { return {spec_.shape, box_, own_}; }
  /// Elements of every data rank's slice; empty when the box is not divided.
  std::span<const std::int64_t> slice_counts() const { return slice_counts_; }
  /// Of what is kept of the own slice alone: the box's where that is all of it, else [count].
  Shape own_shape() const { return owns_all() ? box_.shape : Shape{own_.count}; }
  /// What Shards leave here are own_compute() and own_grad().
  const Shards& shards() const { return shards_; }
  /// The own slice of the compute copy and of the step's gradient, in own_shape().
  const Tensor& own_compute() const { return own_compute_; }
  const Tensor& own_grad() const { return own_grad_; }
  /// The own slice of a tensor of the box's shape, in own_shape().
  Tensor own_part(const Tensor& of_box) const {
    if (owns_all()) return of_box;
    return of_box.reshape({of_box.numel()}).columns(own_.first, own_.count);
  }

 private:
  friend class ParameterStore;
  friend class ParameterGroup;
  bool owns_all() const { return own_.count == box_.shape.numel(); }

  ParameterSpec spec_;
  Box box_;
  bool local_ = true, first_held_ = true;
  Tensor compute_, master_, remainder_, grad_;
  Tensor own_compute_, own_grad_;
  Shards shards_;
  DType master_dtype_ = DType::f32, compute_dtype_ = DType::f32;
  MasterForm form_ = MasterForm::whole;
  bool master_elsewhere_ = false, copy_elsewhere_ = false;
  StochasticRounding rounding_;
  ParameterSlice own_;
  std::vector<std::int64_t> slice_counts_;
};

/// Dtypes of the parameter tensors. The forms `remainder` and `none` are for bf16 copies of FP32
/// masters.
struct ParameterDTypes {
  DType compute = DType::f32;
  DType master = DType::f32;
  DType grad = DType::f32;
  MasterForm form = MasterForm::whole;
  /// With MasterForm::none: updates round stochastically, by words drawn from this seed and the
  /// parameter's name; without a seed to nearest.
  std::optional<std::uint64_t> rounding_seed = std::nullopt;
  /// What is kept beside compute copies is in no tensor (Parameter::master_is_elsewhere).
  bool master_elsewhere = false;
  /// Nor are own slices of what Shards leave of compute copies (Parameter::copy_is_elsewhere).
  bool copy_elsewhere = false;
};

/// What of a parameter may be in no tensor.
enum class Kept : std::uint8_t {
  master,  // or its remainder, in Parameter::kept_master_dtype()
  copy,    // in Parameter::compute_dtype()
};

/// Where that is.
class ValuesElsewhere {
 public:
  virtual ~ValuesElsewhere() = default;
  /// Of the own slice of a parameter, from its element `first` on. Between updates, by any thread.
  virtual void read_kept(const Parameter& parameter, Kept what, std::int64_t first,
                         std::span<std::byte> to) const = 0;
  virtual void write_kept(const Parameter& parameter, Kept what, std::int64_t first,
                          std::span<const std::byte> values) const = 0;
  /// The own slice of a compute copy, into memory of its size on the device.
  struct CopyRead {
    const Parameter* parameter = nullptr;
    std::span<std::byte> to;
  };
  /// Copies on their way, whose memory is theirs until they have arrived.
  class Coming {
   public:
    virtual ~Coming() = default;
    /// Launches from now on find them. Once. StorageError where they cannot be read.
    virtual void arrive() = 0;
  };
  /// The same of several, which lie together if they were declared so: behind what was launched so
  /// far, and beside what is launched until they arrive. To be called by the thread that launches.
  virtual std::unique_ptr<Coming> bring_copies(std::vector<CopyRead> reads) const = 0;
};

/// Parameters whose rows lie one after another in one buffer, so that one product serves all of
/// them: q, k, v or gate, up. Not a name, nor anything on disk. A group of one is the common case.
class ParameterGroup {
 public:
  std::span<Parameter* const> members() const { return members_; }
  /// [sum of out, in] for matrices, [sum of out] for vectors.
  /// Both as those of the members.
  const Tensor& compute() const { return compute_; }
  const Tensor& grad() const { return grad_; }
  /// In what the terms of a step's gradient are summed up: grad(), or with Shards the own slices.
  const Tensor& step_grad() const { return step_grad_; }
  /// For messages: the first member's name.
  const std::string& name() const { return members_.front()->name(); }

  /// Where Shards divide them: memory for the whole compute copies or gradients, of any content,
  /// and none any more.
  void open_compute(Device& device);
  void close_compute();
  void open_grad(Device& device);
  void close_grad();

 private:
  friend class ParameterStore;
  void allocate(Device& device, const ParameterDTypes& dtypes, bool trainable);
  void set_compute(Tensor whole);
  void set_grad(Tensor whole);
  void set_own_parts();

  std::vector<Parameter*> members_;
  Shape shape_;
  DType compute_dtype_ = DType::f32, grad_dtype_ = DType::f32;
  Tensor compute_, master_, remainder_, grad_;
  Tensor own_compute_, own_grad_, step_grad_;
};

/// Of the ranks that have the same elements of a parameter along Axis::tp and Axis::pp, one counts
/// and writes them; whether it is this one.
bool counts_here(const Parameter& parameter, const Mesh& mesh);

/// All parameters of the model, in declaration order, and what this rank holds of them.
class ParameterStore {
 public:
  explicit ParameterStore(const Mesh& mesh) : mesh_(&mesh) {}
  const Mesh& mesh() const { return *mesh_; }

  /// Declares parameters that share one buffer; they agree in all dims but the first, and are local
  /// and trained together or not at all.
  ParameterGroup& declare(std::vector<ParameterSpec> specs);
  ParameterGroup& declare(ParameterSpec spec);
  /// ParameterSpec::holders of what is declared from now on without any.
  void declare_on(std::vector<int> holders) { holders_ = std::move(holders); }

  /// Divides what optimizers update among the ranks of Mesh::owners() that hold it (ZeRO), before
  /// allocation:
  /// evenly, but so that no cut divides pieces of as many elements of a parameter's box as `piece`
  /// says, which an update needs at once (0: all of them; it goes to the rank with the fewest
  /// elements of such).
  void slice(const std::function<std::int64_t(const Parameter&)>& piece, const Shards& shards = {});

  /// Allocates compute copies and masters, and gradient sinks if `trainable`.
  void allocate(Device& device, const ParameterDTypes& dtypes, bool trainable);
  /// Before values are read or written, where ParameterDTypes says that something is elsewhere.
  void keep_in(const ValuesElsewhere& values) { elsewhere_ = &values; }
  /// Writes the first values into master and compute copy; a pure function of (seed, name, index),
  /// whatever the number of threads. Stopped when somebody asks to.
  void initialize(std::uint64_t seed, int threads = 1);
  /// Replaces one parameter's local values (fp32 or fp64 as the master is) and its compute copy,
  /// which is rounded to nearest. Of a sliced master what lies in the slice is written.
  void write(const Parameter& parameter, std::span<const std::byte> master_values);
  /// The same for the elements of the local box from `first` on that are given.
  void write_part(const Parameter& parameter, std::int64_t first,
                  std::span<const std::byte> master_values);
  /// This rank's master values.
  std::vector<std::byte> read(const Parameter& parameter) const;
  /// Those of the elements of the local box from `first` on, as many as `master_values` holds; of
  /// a sliced master they lie in the slice.
  void read_part(const Parameter& parameter, std::int64_t first,
                 std::span<std::byte> master_values) const;

  /// Of the compute copy as it is, elements [first, ..) of the own slice.
  void read_copy(const Parameter& parameter, std::int64_t first, std::span<std::byte> copies) const;

  std::span<const std::unique_ptr<Parameter>> all() const { return parameters_; }
  /// Those of which this rank holds something.
  std::span<Parameter* const> local() const { return local_; }
  /// Of the trained ones.
  std::span<ParameterGroup* const> local_groups() const { return local_groups_; }
  /// Of the whole model, in declaration order; what is not local has no tensors.
  std::span<const std::unique_ptr<ParameterGroup>> groups() const { return groups_; }
  /// InternalError when there is none.
  Parameter& find(std::string_view name) const;
  /// Elements of the logical tensors that are trained, each once.
  std::int64_t num_elements() const;

 private:
  const Mesh* mesh_;
  Device* device_ = nullptr;  // after allocate()
  const ValuesElsewhere* elsewhere_ = nullptr;
  std::vector<int> holders_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::vector<Parameter*> local_;
  std::vector<ParameterGroup*> local_groups_;
};

}  // namespace llmtrain
