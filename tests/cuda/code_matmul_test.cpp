// Products of codes on the device, by the library and by our own, and codes that are transposed.
#include "kernels/code_matmul.hpp"

#include <algorithm>
#include <bit>

#include "kernels/cuda/rules/product_scratch.hpp"
#include "tests/cuda/matmul_case.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/kernels/quantize_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

struct CodeProblem {
  std::int64_t m, n, k;
  NumberFormat a_format = kE4M3, b_format = kE4M3;
  bool wide_c = false;
  bool accumulate = false;
  Bias bias = Bias::none;
  std::int64_t gap = 0;
  bool fast_sums = false;
  Determinism determinism = Determinism::run;
};

/// Codes of normal numbers; the tensors own what the kernel sees.
struct CodeOperation {
  Tensor a, b, a_scale_inv, b_scale_inv, c, bias;
  CodeMatmul kernel;

  CodeOperation(Machine& machine, const CodeProblem& p) {
    a = codes(machine, "a", {p.m, p.k}, p.a_format, p.gap);
    b = codes(machine, "b", {p.n, p.k}, p.b_format, p.gap);
    a_scale_inv = machine.of({0.375}, {1}, DType::f32);
    b_scale_inv = machine.of({1.25e-3}, {1}, DType::f32);
    const DType result = p.wide_c ? DType::f32 : DType::bf16;
    c = p.accumulate ? machine.normals("c", {p.m, p.n}, result, result, p.gap)
                     : machine.empty({p.m, p.n}, result, p.gap);
    if (p.bias != Bias::none) {
      bias = machine.normals("bias", {p.n}, p.bias == Bias::wide ? DType::f32 : DType::bf16,
                             DType::bf16);
    }
    kernel = {.a = a,
              .b = b,
              .a_scale_inv = a_scale_inv,
              .b_scale_inv = b_scale_inv,
              .c = c,
              .bias = bias,
              .a_format = p.a_format,
              .b_format = p.b_format,
              .accumulate = p.accumulate,
              .fast_sums = p.fast_sums};
  }

 private:
  static Tensor codes(Machine& machine, std::string_view name, const Shape& shape,
                      const NumberFormat& format, std::int64_t gap) {
    const Tensor x = machine.normals(name, shape, DType::f32, DType::f32);
    const Tensor scale = machine.of({16}, {1}, DType::f32);
    const Tensor all = machine.device().allocate({shape.rows(), shape.cols() + gap}, DType::u8,
                                                 Category::activations, "codes");
    Tensor made = all.columns(0, shape.cols());
    machine.run(Quantize{
        .x = x, .scale = scale, .scale_inv = {}, .codes = made, .y = {}, .format = format});
    return made;
  }
};

void run(Machine& machine, const CodeProblem& p, const CodeOperation& operation) {
  KernelCtx ctx = machine.ctx();
  ctx.determinism = p.determinism;
  launch(ctx, operation.kernel);
}

Values result(Place place, const CodeProblem& p) {
  Machine machine(place, DType::bf16, DType::bf16);
  const CodeOperation operation(machine, p);
  run(machine, p, operation);
  return machine.read(operation.c);
}

void compare_places(const CodeProblem& p) {
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  CAPTURE(p.a_format.name);
  CAPTURE(p.b_format.name);
  CAPTURE(p.wide_c);
  CAPTURE(p.accumulate);
  CAPTURE(p.gap);
  const Values expected = result(Place::reference, p), found = result(Place::gpu, p);
  // A device's sums have about 14 bits where they are fast; of bf16 a result may be the next
  // number.
  const double bits = p.wide_c ? 0x1p-11 : 0x1p-7;
  CHECK(max_difference(found, expected) <= bits * max_magnitude(expected));
  CHECK(max_difference(found, result(Place::gpu, p)) == 0);
}

const std::vector<CodeProblem> kForms = {
    {64, 96, 128, kE4M3, kE4M3, false, false, Bias::none, 0, true},
    {64, 96, 128, kE4M3, kE4M3, false, false, Bias::narrow, 0, true},
    {64, 96, 128, kE4M3, kE4M3, false, false, Bias::wide, 0, true},
    {64, 96, 128, kE5M2, kE4M3},
    {96, 64, 256, kE5M2, kE4M3, true, true},
    {96, 64, 256, kE4M3, kE5M2, true, true},
    {48, 32, 64, kE4M3, kE4M3, true},
    {48, 80, 112, kE5M2, kE4M3, false, false, Bias::none, 16},
    {48, 80, 112, kE4M3, kE5M2, true, true, Bias::none, 32},
};

}  // namespace

TEST_CASE("products of codes are the reference's, by the library and by our own") {
  for (const CodeProblem& form : kForms) {
    compare_places(form);
    CodeProblem ours = form;
    ours.determinism = Determinism::layout;
    compare_places(ours);
  }
  compare_places({0, 16, 16});
  compare_places({16, 32, 0, kE4M3, kE4M3, false, false, Bias::narrow});
}

TEST_CASE("the library is given codes, and says which sums are fast") {
  const InMode takes(Mode::takes);
  if (skip_if(!takes.possible(), "no fake library")) return;
  for (const CodeProblem& form : kForms) {
    const std::int64_t before = fake_library()->products_of_codes;
    result(Place::gpu, form);
    CHECK(fake_library()->products_of_codes == before + 1);
    CHECK(fake_library()->fast_sums == form.fast_sums);
  }
}

TEST_CASE("codes at odd addresses, and products that the library refuses, are multiplied by ours") {
  const CodeProblem form{32, 48, 64, kE4M3, kE5M2, true};
  const auto shifted = [&](Place place) {
    Machine machine(place, DType::bf16, DType::bf16);
    CodeOperation operation(machine, form);
    operation.kernel.a.data = operation.a.view().as<std::byte>() + 8;
    operation.kernel.a.shape = {32 - 16, 64};
    operation.kernel.c.shape = {32 - 16, 48};
    run(machine, form, operation);
    return machine.read(operation.c.row_range(0, 16));
  };
  const Values expected = shifted(Place::reference);
  CHECK(max_difference(shifted(Place::gpu), expected) <= 0x1p-11 * max_magnitude(expected));
  const InMode refuses(Mode::refuses);
  compare_places(form);
}

TEST_CASE("products of codes are tuned like others, and known afterwards") {
  const test::TempDir here;
  const auto file = here.path() / "products.txt";
  const InMode takes(Mode::takes);
  for (const int pass : {0, 1}) {
    Machine machine = gpu_machine(DType::bf16);
    std::vector<CodeOperation> operations;
    std::vector<Product> products;
    for (const CodeProblem& form : kForms) {
      operations.emplace_back(machine, form);
      products.emplace_back(operations.back().kernel);
    }
    const std::uint64_t bytes =
        cuda::tuning_scratch_bytes(products, machine.ctx().library_workspace_bytes);
    const Tensor scratch = machine.zeros({static_cast<std::int64_t>(bytes) / 2}, DType::bf16);
    const TunedProducts tuned =
        gpu().tune_products(machine.ctx(), products, scratch.view(), {.choices = "", .file = file});
    if (skip_if(tuned.left_out == kForms.size(), kNoLibrary)) return;
    CHECK(tuned.left_out == 0);
    // A bias that is copied to its place is like one that lies there; the workspace has less room.
    CHECK(tuned.measured == (pass == 0 ? kForms.size() : 0));
    CHECK(tuned.known == (pass == 0 ? 0 : kForms.size()));
    for (std::size_t i = 0; i < kForms.size(); ++i) {
      run(machine, kForms[i], operations[i]);
      const Values expected = result(Place::reference, kForms[i]);
      CHECK(max_difference(machine.read(operations[i].c), expected) <=
            0x1p-7 * max_magnitude(expected));
    }
  }
}
