// Data sheets of machines: what is read, what is refused, and what plans make of them.
#include "lib/plan/hardware_sheet.hpp"

#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/plan/nominal_profile.hpp"
#include "lib/plan/predict.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

const HardwareSheet& sheet_named(std::string_view name) {
  for (const HardwareSheet& sheet : hardware_sheets()) {
    if (sheet.name == name) return sheet;
  }
  FAIL("no sheet ", name);
  return hardware_sheets().front();
}

// The text of a sheet with one thing in it replaced.
std::string edited(std::string_view name, std::string_view old, std::string_view by) {
  std::string text = *builtin_sheet(name);
  const std::size_t at = text.find(old);
  REQUIRE_MESSAGE(at != std::string::npos, old);
  return text.replace(at, old.size(), by);
}

// Everything that a plan takes from a profile.
std::string everything(const HardwareProfile& profile) {
  const Network& net = profile.network.value();
  return fmt::format("{} {} {} {} {} {} {} {} {}", to_json(profile), profile.peak_tf32_flops,
                     to_string(profile.device), profile.threads, net.ranks_per_node,
                     net.node.seconds, net.node.bytes_per_second, net.fabric.seconds,
                     net.fabric.bytes_per_second);
}

// A step of a small Llama on 16 ranks: dp 2 x tp 8.
double step_seconds(const HardwareProfile& profile) {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: llama, vocab_size: 4096, hidden_size: 1024, num_hidden_layers: 2,
        num_attention_heads: 8, intermediate_size: 2048, max_position_embeddings: 256}
training: {seq_len: 256, micro_batch_size: 4, global_batch_size: 8, max_steps: 4}
precision: {compute: bf16}
)",
                        .overrides = {}});
  const engine::Target target{.device = profile.device,
                              .threads = std::max(1, profile.threads),
                              .mesh = {.sizes = {2, 8, 1, 1}}};
  const Plan plan = make_plan(recipe.options(1), 8, target);
  const RunShape run{
      .device = profile.device, .threads = profile.threads, .compute = DType::bf16, .steps = 1};
  return planned_time(plan, profile, run, "sheet").step.seconds;
}

}  // namespace

TEST_CASE("every sheet of the executable is read, says its command, and gives a step its time") {
  std::vector<std::string> names;
  for (const HardwareSheet& sheet : hardware_sheets()) {
    CAPTURE(sheet.name);
    names.push_back(sheet.name);
    const std::string text = *builtin_sheet(sheet.name);
    CHECK(text.starts_with("# llmtrain plan RECIPE "));
    CHECK(text.find("--profile " + sheet.name + " ") != std::string::npos);
    CHECK(sheet.file.empty());
    CHECK(step_seconds(nominal_profile(sheet)) > 0);
  }
  for (const char* name : {"a100", "h100", "h800", "h200", "b200", "epyc-2-cores"}) {
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  }
}

// Published figures; plans of the past were made with them.
TEST_CASE("the sheets of GPUs have their makers' figures") {
  struct Figures {
    const char* name;
    double bf16, tf32, fp32, fp64, memory_rate;
    std::uint64_t memory_mib;
    int multiprocessors;
    std::uint64_t cache_mib;
    double node, fabric;
  };
  for (const Figures& f : {
           Figures{"a100", 312e12, 156e12, 19.5e12, 19.5e12, 2.039e12, 81920, 108, 40, 300e9, 25e9},
           Figures{"h100", 989.4e12, 494.7e12, 66.9e12, 66.9e12, 3.35e12, 81559, 132, 50, 450e9,
                   50e9},
           Figures{"h800", 989.4e12, 494.7e12, 66.9e12, 1e12, 3.35e12, 81559, 132, 50, 200e9, 50e9},
           Figures{"h200", 989.4e12, 494.7e12, 66.9e12, 66.9e12, 4.8e12, 143771, 132, 50, 450e9,
                   50e9},
           Figures{"b200", 2250e12, 1125e12, 75e12, 37e12, 7.7e12, 183359, 148, 126, 900e9, 50e9},
       }) {
    CAPTURE(std::string(f.name));
    const HardwareSheet& sheet = sheet_named(f.name);
    CHECK(sheet.device == DeviceKind::cuda);
    CHECK(sheet.bf16_flops == f.bf16);
    CHECK(sheet.tf32_flops == f.tf32);
    CHECK(sheet.fp32_flops == f.fp32);
    CHECK(sheet.fp64_flops == f.fp64);
    CHECK(sheet.bytes_per_second == f.memory_rate);
    CHECK(sheet.memory_bytes == f.memory_mib * kMiB);
    CHECK(sheet.multiprocessors == f.multiprocessors);
    CHECK(sheet.cache_bytes == f.cache_mib * kMiB);
    CHECK(sheet.launch_seconds == 2.5e-6);
    CHECK(sheet.network.ranks_per_node == 8);
    CHECK(sheet.network.node.bytes_per_second == 0.8 * f.node);
    CHECK(sheet.network.fabric.bytes_per_second == 0.8 * f.fabric);
    CHECK(sheet.network.node.seconds == 4e-6);
    CHECK(sheet.network.fabric.seconds == 12e-6);
  }
}

TEST_CASE("a sheet with a mistake is refused with the place, the key and the remedy") {
  struct Mistake {
    const char* sheet;
    const char* old;
    const char* by;
    const char* message;
  };
  for (const Mistake& m : {
           Mistake{"h100", "  bf16_flops", "  bf16_flop",
                   "mine.yaml:12:3: compute.bf16_flop: unknown key (did you mean `bf16_flops`?"},
           Mistake{"h100", "  tf32_flops: 494.7e12\n", "",
                   "compute.tf32_flops: required key is missing"},
           Mistake{"h100", "ranks_per_node: 8\n", "", "ranks_per_node: required key is missing"},
           Mistake{"h100", "  device: cuda\n", "", "compute.device: required key is missing"},
           Mistake{"h100", "device: cuda", "device: rocm", "compute.device: "},
           Mistake{"h100", "bytes_per_second: 3.35e12", "bytes_per_second: -3.35e12",
                   "memory.bytes_per_second: must be > 0"},
           Mistake{"h100", "bytes_per_second: 450e9", "bytes_per_second: 0",
                   "links.node.bytes_per_second: must be > 0"},
           Mistake{"h100", "latency_seconds: 12e-6", "latency_seconds: -1",
                   "links.fabric.latency_seconds: must be >= 0"},
           Mistake{"h100", "fp32_flops: 66.9e12", "fp32_flops: .inf",
                   "compute.fp32_flops: `.inf` must be a finite number"},
           Mistake{"h100", "fp32_flops: 66.9e12", "fp32_flops: fast", "compute.fp32_flops: "},
           Mistake{"h100", "fp64_flops: 66.9e12", "fp64_flops: 1e999", "compute.fp64_flops: "},
           Mistake{"h100", "products: 0.75", "products: 75", "achieved.products: must be "},
           Mistake{"h100", "multiprocessors: 132", "multiprocessors: 0",
                   "compute.multiprocessors: must be "},
           Mistake{"h100", "ranks_per_node: 8", "ranks_per_node: 1.5", "ranks_per_node: "},
           Mistake{"h100", "81559MiB", "-1MiB", "memory.capacity: "},
           Mistake{"h100", "driver_name: H100", "driver_name: \"\"", "compute.driver_name: "},
           Mistake{"h100", "hardware: 1", "hardware: 2",
                   "hardware: this program reads hardware sheets of version 1, found `2`"},
           Mistake{"h100", "hardware: 1", "recipe: 1", "recipe: unknown key"},
           Mistake{"h100", "ranks_per_node: 8", "ranks_per_node: 8\nranks_per_node: 4",
                   "ranks_per_node"},
           Mistake{"h100", "links:  # one way\n", "links: 3\nx-links:\n", "links: expected a "},
           Mistake{"epyc-2-cores", "  threads: 2\n", "  threads: 2\n  multiprocessors: 4\n",
                   "compute.multiprocessors: does not belong to what was chosen (only with "
                   "compute.device: cuda"},
       }) {
    CAPTURE(std::string(m.by));
    CHECK_THROWS_WITH_AS(parse_sheet(edited(m.sheet, m.old, m.by), "mine.yaml"),
                         doctest::Contains(m.message), RecipeError);
  }
  CHECK_THROWS_WITH_AS(parse_sheet("", "mine.yaml"), doctest::Contains("start with `hardware: 1`"),
                       RecipeError);
  CHECK_THROWS_WITH_AS(parse_sheet("[1, 2]", "mine.yaml"), doctest::Contains("mine.yaml:1:1"),
                       RecipeError);
  CHECK_THROWS_WITH_AS(load_sheet("/nonexistent/mine.yaml"),
                       doctest::Contains("a hardware sheet is a file of at most 1 MiB"),
                       RecipeError);
}

TEST_CASE("a sheet may begin with another one and say only what differs") {
  const test::TempDir scratch;
  write_file_atomic(scratch / "slow.yaml",
                    "hardware: 1\ninclude: [h100]\ntitle: H100 at 500 W\n"
                    "achieved: {products: 0.6}\n");
  const HardwareSheet slow = load_sheet(scratch / "slow.yaml");
  const HardwareSheet& h100 = sheet_named("h100");
  CHECK(slow.file == (scratch / "slow.yaml").string());
  CHECK(slow.achieved.products == 0.6);
  CHECK(slow.achieved.memory == h100.achieved.memory);
  CHECK(slow.bf16_flops == h100.bf16_flops);
  CHECK(nominal_profile(slow).machine.host.find("H100 at 500 W, from the data sheet") == 0);
  const std::string page = read_file(test_file("../docs/planner.md"));
  const std::size_t begin = page.find("```\nhardware: 1") + 4;
  const HardwareSheet of_page =
      parse_sheet(page.substr(begin, page.find("```", begin) - begin), "planner.md");
  CHECK(of_page.network.ranks_per_node == 4);
  CHECK(of_page.network.fabric.bytes_per_second == 0.8 * 25e9);
  CHECK_THROWS_WITH_AS(parse_sheet("include: [h1000]", "mine.yaml"), doctest::Contains("h1000"),
                       RecipeError);
}

TEST_CASE("half of a rate makes a longer step") {
  const double before = step_seconds(nominal_profile(sheet_named("h100")));
  for (const char* change :
       {"memory: {bytes_per_second: 1.675e12}", "compute: {bf16_flops: 494.7e12}",
        "links: {node: {bytes_per_second: 225e9}}", "links: {fabric: {bytes_per_second: 25e9}}",
        "links: {node: {latency_seconds: 8e-6}}", "compute: {launch_seconds: 5e-6}"}) {
    CAPTURE(std::string(change));
    const HardwareSheet slower =
        parse_sheet(fmt::format("include: [h100]\n{}\n", change), "slower.yaml");
    CHECK(step_seconds(nominal_profile(slower)) > before);
  }
}

TEST_CASE("no key of a sheet does nothing") {
  const auto differs = [](std::string_view of, std::string_view change) {
    CAPTURE(std::string(change));
    const HardwareProfile profile =
        nominal_profile(parse_sheet(fmt::format("include: [{}]\n{}\n", of, change), "m.yaml"));
    HardwareProfile original = nominal_profile(sheet_named(of));
    if (change != "title: T") original.machine.host = profile.machine.host;
    CHECK(everything(profile) != everything(original));
  };
  for (const char* change : {"title: T",
                             "compute: {multiprocessors: 7}",
                             "compute: {bf16_flops: 1e12}",
                             "compute: {fp8_flops: 1e12}",
                             "compute: {tf32_flops: 1e12}",
                             "compute: {fp32_flops: 1e12}",
                             "compute: {fp64_flops: 2e12}",
                             "compute: {launch_seconds: 1e-6}",
                             "memory: {capacity: 1GiB}",
                             "memory: {bytes_per_second: 1e12}",
                             "memory: {cache: 1MiB}",
                             "achieved: {products: 0.5}",
                             "achieved: {attention_forward: 0.5}",
                             "achieved: {attention_backward: 0.5}",
                             "achieved: {memory: 0.5}",
                             "achieved: {links: 0.5}",
                             "ranks_per_node: 4",
                             "links: {node: {bytes_per_second: 1e9}}",
                             "links: {node: {latency_seconds: 1e-3}}",
                             "links: {fabric: {bytes_per_second: 1e9}}",
                             "links: {fabric: {latency_seconds: 1e-3}}"}) {
    differs("h100", change);
  }
  differs("epyc-2-cores", "compute: {threads: 4}");
  // By driver_name the sheet of a GPU is found (nominal_profile_test.cpp).
}

TEST_CASE("the sheet of a CPU has times for its threads and any number of ranks") {
  const HardwareProfile cpu = nominal_profile(sheet_named("epyc-2-cores"));
  CHECK(cpu.device == DeviceKind::cpu);
  CHECK(cpu.threads == 2);
  CHECK(cpu.peak_flops(DType::f16) == cpu.peak_fp32_flops);
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: gpt2, vocab_size: 300, hidden_size: 32, num_hidden_layers: 2,
        num_attention_heads: 2, max_position_embeddings: 32}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4, max_steps: 4}
)",
                        .overrides = {}});
  const Plan plan = make_plan(recipe.options(1), 4, 2);
  CHECK(planned_time(plan, cpu, {.threads = 2}, "sheet").step.seconds > 0);
  CHECK_THROWS_WITH_AS(planned_time(plan, cpu, {.threads = 4}, "sheet"),
                       doctest::Contains("sheet is of 2 threads, but the run has 4; set "
                                         "run.threads=2"),
                       RecipeError);
}

}  // namespace llmtrain::plan
