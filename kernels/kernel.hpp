#pragma once
/// What a kernel is, and the one door through which all are launched.
///
/// A kernel is a plain struct of views and scalars with
///   static constexpr std::string_view name;     // key in every device's table
///   void check() const;                         // shapes, dtypes, strides; InternalError
///   Cost cost() const;                          // for plan and MFU
///   std::uint64_t workspace_bytes(int threads) const;   // the CPU's: pure upper bound; 0 for most
/// Unless a struct says otherwise its operands are contiguous; "strided" operands may have a row
/// stride above their row. Nothing is broadcast or copied implicitly.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/tensor/device.hpp"

namespace llmtrain::kernels {

/// Work of one launch. `flops` counts multiply-adds of matrix products twice, nothing else.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;

  double bytes() const { return bytes_read + bytes_written; }
  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    return *this;
  }
  friend Cost operator*(double factor, const Cost& cost) {
    return {factor * cost.flops, factor * cost.bytes_read, factor * cost.bytes_written};
  }
};

/// fast: library reductions allowed; run: same recipe and layout give the same bits; layout:
/// results do not depend on DP, accumulation, ZeRO or PP either.
enum class Determinism : std::uint8_t { fast, run, layout };
/// As the recipe names them.
std::string_view to_string(Determinism determinism);

/// Who computes attention on a GPU. automatic: cuDNN where it is expected to be faster than our
/// kernels; cudnn: also where it may not be, and an error where it cannot.
enum class AttentionChoice : std::uint8_t { automatic, cudnn, own };

struct KernelCtx;
/// `kernel` points to the struct that the table row's name belongs to; `workspace` has the bytes
/// that it asked for, or is undefined.
using KernelFunction = void (*)(const KernelCtx& ctx, const void* kernel, const View& workspace);

struct KernelRow {
  std::string_view name;
  KernelFunction run;
};

/// A table row for kernel struct K from a typed function.
template <class K, void (*function)(const KernelCtx&, const K&, const View&)>
constexpr KernelRow row_of() {
  return {K::name, [](const KernelCtx& ctx, const void* kernel, const View& workspace) {
            function(ctx, *static_cast<const K*>(kernel), workspace);
          }};
}

/// How much workspace a device's kernels ask for: an upper bound, a pure function of the kernel's
/// shapes, of `ctx.library_workspace_bytes`, `ctx.attention` and `ctx.determinism`, known without
/// the device, so that a plan needs none.
struct WorkspaceRow {
  std::string_view name;
  std::uint64_t (*bytes)(const KernelCtx& ctx, const void* kernel);
};

/// The same from a typed function.
template <class K, std::uint64_t (*function)(const KernelCtx&, const K&)>
constexpr WorkspaceRow workspace_row_of() {
  return {K::name, [](const KernelCtx& ctx, const void* kernel) {
            return function(ctx, *static_cast<const K*>(kernel));
          }};
}

enum class Activation : std::uint8_t;  // kernels/activations.hpp

/// Whether a device's products of this type do better with the function in their epilogue
/// (matmul.hpp) than with a kernel of its own behind them.
using FusesActivation = bool (*)(Activation activation, DType dtype);

/// One device's kernels: an explicit list of rows. A device whose kernels ask for other workspace
/// than the CPU's says so in `workspaces`, a row for every kernel.
class KernelTable {
 public:
  KernelTable(std::string_view device, std::vector<KernelRow> rows,
              std::vector<WorkspaceRow> workspaces = {}, FusesActivation fuses = nullptr);
  /// InternalError naming operation and device when the row is absent.
  KernelFunction find(std::string_view name) const;
  /// By this device's own row, or else `cpu_bytes`. InternalError when the device has rows, but
  /// none for this kernel.
  std::uint64_t workspace_bytes(const KernelCtx& ctx, std::string_view name, const void* kernel,
                                std::uint64_t cpu_bytes) const;
  bool fuses(Activation activation, DType dtype) const {
    return fuses_ != nullptr && fuses_(activation, dtype);
  }
  FusesActivation fuses() const { return fuses_; }
  std::string_view device() const { return device_; }
  std::span<const KernelRow> rows() const { return rows_; }
  std::span<const WorkspaceRow> workspaces() const { return workspaces_; }

 private:
  std::string_view device_;
  std::vector<KernelRow> rows_;           // sorted by name
  std::vector<WorkspaceRow> workspaces_;  // sorted by name
  FusesActivation fuses_;
};

/// One launch as the plan sees it.
struct LaunchRecord {
  std::string_view name;
  Cost cost;
  DType dtype;  // of the first operand
  /// The sizes that decide the speed, in the kernel's own order (Matmul: m, n, k).
  std::array<std::int64_t, 4> sizes{};
  /// Whether products of fp32 round their operands to TF32 here.
  bool tf32 = false;
  /// The struct that `name` belongs to, alive during the call.
  const void* kernel = nullptr;
};

/// Receives every launch; the meta device has nothing else to do.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(const LaunchRecord& launch) = 0;
};

/// What a launch needs. Cheap to copy; the referenced objects outlive it.
struct KernelCtx {
  Device* device = nullptr;
  const KernelTable* table = nullptr;
  Stream stream{};
  int threads = 1;
  Determinism determinism = Determinism::run;
  Recorder* recorder = nullptr;
  /// Reserved for every product and every attention that a library computes on a GPU; the CPU's
  /// libraries declare theirs.
  std::uint64_t library_workspace_bytes = 0;
  /// Products of fp32 that a library computes on a GPU round their operands to TF32 (a mantissa of
  /// 10 bits) and add in FP32; other kernels do not ask.
  bool tf32 = false;
  AttentionChoice attention = AttentionChoice::automatic;
};

namespace detail {
/// `cpu_workspace_bytes` is what the CPU's kernel asks for.
void launch(const KernelCtx& ctx, std::string_view name, const void* kernel, const Cost& cost,
            DType dtype, const std::array<std::int64_t, 4>& sizes,
            std::uint64_t cpu_workspace_bytes);
}  // namespace detail

/// Checks, records and runs a kernel in stream order. On meta it only checks and records.
template <class K>
void launch(const KernelCtx& ctx, const K& kernel) {
  kernel.check();
  detail::launch(ctx, K::name, &kernel, kernel.cost(), kernel.dtype(), kernel.sizes(),
                 kernel.workspace_bytes(ctx.threads));
}

/// Rows of the CPU: plain single-thread reference kernels in every dtype including fp64 (they are
/// the specification), and the fast path (fp32, bf16 and fp16; it hands fp64 to the reference).
const KernelTable& cpu_reference_table();
const KernelTable& cpu_table();
/// Rows of meta: none, because launch() stops before the look-up. Workspaces are the CPU's.
const KernelTable& meta_table();

}  // namespace llmtrain::kernels
