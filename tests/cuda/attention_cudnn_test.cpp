// Attention by cuDNN: the stand-in of the emulated GPU, or the real one where there is a GPU and
// it.
#include <cstdlib>
#include <dlfcn.h>

#include "lib/base/error.hpp"
#include "tests/cuda/attention_case.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/cuda_emulation/fake_cudnn.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

/// Null where the plugin is the real one.
FakeCudnn* fake() {
  void* const plugin =
      ::dlopen(load_backend(DeviceKind::cuda).file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto function = reinterpret_cast<FakeCudnnFunction>(::dlsym(plugin, "fake_cudnn_state"));
  return function != nullptr ? function() : nullptr;
}

/// The stand-in in another mode, for a while.
class InMode {
 public:
  explicit InMode(FakeCudnn::Mode mode) : before_(fake()->mode) { fake()->mode = mode; }
  ~InMode() { fake()->mode = before_; }
  InMode(const InMode&) = delete;
  InMode& operator=(const InMode&) = delete;

 private:
  FakeCudnn::Mode before_;
};

bool is_there() { return gpu().report().cudnn_problem.empty(); }

/// Whose attention is not cuDNN's: as the line of choices() begins.
std::string ours() {
  const char* const setting = std::getenv("LLMTRAIN_WGMMA");
  const bool off = setting != nullptr && std::string_view(setting) == "off";
  const bool wgmma = !off && gpu().report().devices.front().capability == 90;
  return wgmma ? "attention: our kernels for wgmma (" : "attention: our kernels for tensor cores (";
}

// Probabilities and gradients of scores are bf16 before the second product of each direction, as in
// our kernels.
constexpr Limits kForward{.times_reference = 3, .floor = 3};
constexpr Limits kBackward{.times_reference = 3, .floor = 4};

const std::vector<AttentionCase> kCases = {
    {.name = "causal", .tq = 200, .tk = 200, .head_dim = 64},
    {.name = "two rows", .tq = 2, .tk = 2, .head_dim = 8},
    {.name = "documents", .tq = 130, .tk = 130, .head_dim = 32, .documents = {0, 20, 23, 125}},
    {.name = "window", .tq = 150, .tk = 150, .heads = 1, .head_dim = 32, .window = 50},
    {.name = "window of documents",
     .sequences = 2,
     .tq = 70,
     .tk = 70,
     .head_dim = 32,
     .window = 9,
     .documents = {0, 30}},
    {.name = "groups",
     .sequences = 2,
     .tq = 70,
     .tk = 70,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 40,
     .fused = true},
    {.name = "every head its own", .tq = 90, .tk = 90, .heads = 3, .kv_heads = 3, .fused = true},
    {.name = "128", .tq = 140, .tk = 140, .heads = 1, .head_dim = 128, .fused = true},
    {.name = "256", .tq = 70, .tk = 70, .heads = 2, .head_dim = 256, .scale = 0.3},
};

/// The lines of a machine that ran both directions of a case.
std::string choices_of(AttentionCase c) {
  Machine exact(Place::reference, DType::f64, DType::bf16);
  const std::vector<Output> found = AttentionProblem(exact, c).forward();
  Machine machine(Place::gpu, DType::bf16, DType::bf16);
  AttentionProblem problem(machine, c);
  problem.forward();
  problem.backward(found[0].values, found[1].values);
  std::string text;
  for (const std::string& line : gpu().choices(machine.device())) text += line + "\n";
  return text;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("attention by cuDNN has the reference's values with what it takes") {
  if (skip_if(!is_there(), kNoLibrary)) return;
  for (AttentionCase c : kCases) {
    for (const Determinism determinism : {Determinism::run, Determinism::fast}) {
      c.choice = AttentionChoice::cudnn;
      c.determinism = determinism;
      const std::int64_t before = fake() != nullptr ? fake()->executed : 0;
      // On a GPU sums in any order are not the same twice.
      if (fake() == nullptr && determinism == Determinism::fast) continue;
      compare_attention(c, DType::bf16, kForward, kBackward);
      if (fake() != nullptr) CHECK(fake()->executed == before + 4);  // both directions twice
    }
  }
}

TEST_CASE("attention goes to cuDNN by the recipe's choice and what it has") {
  if (skip_if(!is_there(), kNoLibrary)) return;
  AttentionCase c{.name = "choice", .tq = 70, .tk = 70, .choice = AttentionChoice::automatic};
  CHECK(has(choices_of(c), "attention: cuDNN "));
  CHECK(has(choices_of(c), " (forward, backward)\n"));
  c.documents = {0, 30};
  CHECK(has(choices_of(c), ours() + "forward, backward; documents"));
  c.choice = AttentionChoice::cudnn;
  CHECK(has(choices_of(c), "attention: cuDNN "));
  c.choice = AttentionChoice::own;
  CHECK(has(choices_of(c), ours() + "forward, backward"));
  CHECK_FALSE(has(choices_of(c), "cuDNN"));
  c = {.name = "softcap", .softcap = 3, .choice = AttentionChoice::automatic};
  CHECK(has(choices_of(c), ours() + "forward, backward; softcap"));
  c = {.name = "odd heads", .head_dim = 12, .choice = AttentionChoice::automatic};
  CHECK(has(choices_of(c), "our plain kernels (forward, backward; head_dim)"));
  c = {.name = "odd rows", .fused = true, .odd_rows = true, .choice = AttentionChoice::automatic};
  CHECK(has(choices_of(c), "our plain kernels (forward, backward; alignment)"));
  c = {.name = "cache", .tq = 5, .tk = 70, .q_begin = 65, .choice = AttentionChoice::automatic};
  CHECK(has(choices_of(c), "(forward, backward; a key/value cache)"));
  // By fixed rules, whatever the machine has and its trial has shown.
  const AttentionCase layout{.name = "layout",
                             .tq = 70,
                             .tk = 70,
                             .choice = AttentionChoice::automatic,
                             .determinism = Determinism::layout};
  CHECK(choices_of(layout) ==
        "attention: our kernels for tensor cores (forward, backward; run.determinism is layout)\n");
  // Where the recipe insists, what a recipe decides is refused; what a launch decides is not.
  c.choice = AttentionChoice::cudnn;
  CHECK(has(choices_of(c), "a key/value cache"));
  for (const AttentionCase& lacking :
       {AttentionCase{.name = "softcap", .softcap = 3},
        AttentionCase{.name = "parts", .wide = true}, AttentionCase{.name = "alibi", .alibi = true},
        AttentionCase{.name = "sink", .sink = true}, AttentionCase{.name = "drop", .dropout = 0.5},
        AttentionCase{.name = "head_dim", .head_dim = 12},
        AttentionCase{.name = "scale", .scale = -1}}) {
    CAPTURE(lacking.name);
    c = lacking;
    c.choice = AttentionChoice::cudnn;
    CHECK_THROWS_AS(choices_of(c), RecipeError);
  }
}

TEST_CASE("a backward that wants more workspace than there is goes in pieces, or to our kernels") {
  if (skip_if(fake() == nullptr, kStandInAlone)) return;
  // 64 rows or fewer: 8 KiB of workspace for a head, and one block of 128 rows. There is 32 times
  // what is reserved for products.
  AttentionCase sequences{.name = "sequences",
                          .sequences = 16,
                          .tq = 20,
                          .tk = 20,
                          .heads = 12,
                          .kv_heads = 12,
                          .head_dim = 8,
                          .fused = true,
                          .documents = {0, 7},
                          .choice = AttentionChoice::cudnn,
                          .library_workspace_bytes = (8 << 10) * 100 / 32};
  AttentionCase heads{.name = "heads",
                      .tq = 9,
                      .tk = 9,
                      .heads = 192,
                      .kv_heads = 96,
                      .head_dim = 8,
                      .window = 5,
                      .fused = true,
                      .choice = AttentionChoice::cudnn,
                      .library_workspace_bytes = (8 << 10) * 130 / 32};
  for (const AttentionCase& c : {sequences, heads}) {
    const std::int64_t before = fake()->executed;
    compare_attention(c, DType::bf16, kForward, kBackward);
    CHECK(fake()->executed == before + 2 * (1 + 2));  // twice: a forward, two halves of a backward
  }
  // No piece with enough blocks fits.
  sequences.library_workspace_bytes = (8 << 10) / 32;
  CHECK_THROWS_AS(choices_of(sequences), DeviceError);
  sequences.choice = AttentionChoice::automatic;
  sequences.documents = {0};
  const std::string lines = choices_of(sequences);
  CHECK(has(lines, "attention: cuDNN 9.19.0 (forward)\n"));
  CHECK(has(lines,
            "attention: our kernels for wgmma (backward; engine 9 is not deterministic"
            "; engine 6 needs 1.50 MiB of run.library_workspace, which has 8.00 KiB"));
  // Sums in any order need none, and are of the first engine.
  sequences.determinism = Determinism::fast;
  CHECK(has(choices_of(sequences), "attention: cuDNN 9.19.0 (forward, backward)"));
  CHECK(fake()->engine == 9);
}

TEST_CASE("plans are made once for a shape, and a device closes what it opened") {
  if (skip_if(fake() == nullptr, kStandInAlone)) return;
  const std::int64_t open = fake()->handles;
  {
    Machine machine(Place::gpu, DType::bf16, DType::bf16);
    const AttentionCase c{.name = "again", .choice = AttentionChoice::automatic};
    AttentionProblem problem(machine, c);
    problem.forward();
    const std::int64_t heuristics = fake()->heuristics, plans = fake()->plans;
    CHECK(fake()->handles == open + 1);
    problem.forward();
    CHECK(fake()->heuristics == heuristics);
    CHECK(fake()->plans == plans);
  }
  CHECK(fake()->handles == open);
}

TEST_CASE("an engine that becomes no plan is passed over, and without any our kernels run") {
  if (skip_if(fake() == nullptr, kStandInAlone)) return;
  AttentionCase c{.name = "modes", .choice = AttentionChoice::automatic};
  {
    const InMode mode(FakeCudnn::Mode::fickle);
    CHECK(has(choices_of(c), "attention: cuDNN 9.19.0 (forward, backward)"));
    CHECK(fake()->engine == 7);
  }
  const InMode mode(FakeCudnn::Mode::refuses);
  CHECK(choices_of(c) ==
        "attention: our kernels for wgmma (forward, backward; cuDNN has no engine for "
        "this)\n");
  c.choice = AttentionChoice::cudnn;
  CHECK_THROWS_AS(choices_of(c), DeviceError);
}
