#include "lib/plan/hardware_sheet.hpp"

#include <array>

#include "lib/recipe/load.hpp"

namespace llmtrain::plan {

namespace {

using recipe::above;
using recipe::at_most;
using recipe::between;
using recipe::not_empty;
using recipe::unit;

constexpr double kMaxRanksPerNode = 1 << 16, kMaxMultiprocessors = 1 << 16, kMaxThreads = 4096;

struct GpuOptions : recipe::Section {
  recipe::Key<std::optional<std::string>> driver_name{
      this, "driver_name", std::nullopt,
      "the model, as the driver's name of such a GPU contains it: finds the sheet of a GPU that is "
      "here",
      not_empty()};
  recipe::Required<std::int64_t> multiprocessors{this, "multiprocessors", "of one GPU",
                                                 between(1, kMaxMultiprocessors)};
  recipe::Key<std::optional<double>> fp8_flops{
      this, "fp8_flops", std::nullopt,
      "as bf16_flops, on codes of eight bits; null: the GPU multiplies none",
      above(0) & unit("FLOP/s")};
  recipe::Required<double> tf32_flops{this, "tf32_flops", "as bf16_flops, on fp32 rounded to tf32",
                                      above(0) & unit("FLOP/s")};
};

struct CpuOptions : recipe::Section {
  recipe::Required<std::int64_t> threads{this, "threads", "of one rank, whose rates these are",
                                         between(1, kMaxThreads)};
};

struct DeviceRow {
  std::string_view name, doc;
  DeviceKind kind;
  std::unique_ptr<recipe::Section> (*options)();
};
constexpr std::array kDevices{
    DeviceRow{"cuda", "a rank is a GPU", DeviceKind::cuda, &recipe::section_of<GpuOptions>},
    DeviceRow{"cpu", "a rank is some threads", DeviceKind::cpu, &recipe::section_of<CpuOptions>}};

struct ComputeSection : recipe::Section {
  recipe::Choice<DeviceRow> device{this, "device", kDevices, "", "what computes"};
  recipe::Required<double> bf16_flops{
      this, "bf16_flops", "dense products of bf16 with fp32 sums; on a GPU of fp16, too",
      above(0) & unit("FLOP/s")};
  recipe::Required<double> fp32_flops{this, "fp32_flops", "multiply-adds of fp32, counted twice",
                                      above(0) & unit("FLOP/s")};
  recipe::Required<double> fp64_flops{this, "fp64_flops", "likewise of fp64",
                                      above(0) & unit("FLOP/s")};
  recipe::Required<double> launch_seconds{this, "launch_seconds",
                                          "a launch that has next to nothing to do",
                                          above(0) & at_most(1) & unit("s")};
};

struct MemorySection : recipe::Section {
  recipe::Required<recipe::Bytes> capacity{this, "capacity",
                                           "of a rank; of a GPU, what its driver shows", above(0)};
  recipe::Required<double> bytes_per_second{this, "bytes_per_second", "read and written",
                                            above(0) & unit("B/s")};
  recipe::Required<recipe::Bytes> cache{this, "cache", "of the last level", above(0)};
};

struct AchievedSection : recipe::Section {
  recipe::Required<double> products{this, "products", "large products, of the rate of their type",
                                    above(0) & at_most(1)};
  recipe::Required<double> attention_forward{
      this, "attention_forward", "causal attention with a head of 128, of the rate of its type",
      above(0) & at_most(1)};
  recipe::Required<double> attention_backward{this, "attention_backward", "likewise",
                                              above(0) & at_most(1)};
  recipe::Required<double> memory{this, "memory", "one pass over memory, of its rate",
                                  above(0) & at_most(1)};
  recipe::Required<double> links{this, "links", "long transfers, of a link's rate",
                                 above(0) & at_most(1)};
};

struct LinkSection : recipe::Section {
  recipe::Required<double> bytes_per_second{
      this, "bytes_per_second", "that one rank sends while all do", above(0) & unit("B/s")};
  recipe::Required<double> latency_seconds{this, "latency_seconds", "before the first byte",
                                           between(0, 1) & unit("s")};
};

struct LinksSection : recipe::Section {
  recipe::Sub<LinkSection> node{this, "node", "between the ranks of a machine"};
  recipe::Sub<LinkSection> fabric{this, "fabric", "between machines"};
};

struct SheetSection : recipe::Section {
  recipe::Required<std::string> title{this, "title", "what plans call it", not_empty()};
  recipe::Sub<ComputeSection> compute{this, "compute", "rates of one rank"};
  recipe::Sub<MemorySection> memory{this, "memory", "of one rank"};
  recipe::Sub<AchievedSection> achieved{this, "achieved",
                                        "what good kernels reach of these rates, 0 to 1"};
  recipe::Required<std::int64_t> ranks_per_node{this, "ranks_per_node", "ranks of one machine",
                                                between(1, kMaxRanksPerNode)};
  recipe::Sub<LinksSection> links{this, "links", "what connects ranks, one way"};
};

Link link_of(const LinkSection& link, double share) {
  return {.seconds = link.latency_seconds(), .bytes_per_second = share * link.bytes_per_second()};
}

HardwareSheet sheet_from(const SheetSection& section) {
  const ComputeSection& compute = section.compute;
  const AchievedSection& achieved = section.achieved;
  HardwareSheet sheet{.title = section.title(),
                      .device = compute.device().kind,
                      .bf16_flops = compute.bf16_flops(),
                      .fp32_flops = compute.fp32_flops(),
                      .fp64_flops = compute.fp64_flops(),
                      .bytes_per_second = section.memory.bytes_per_second(),
                      .memory_bytes = section.memory.capacity(),
                      .cache_bytes = section.memory.cache(),
                      .launch_seconds = compute.launch_seconds(),
                      .achieved = {.products = achieved.products(),
                                   .attention_forward = achieved.attention_forward(),
                                   .attention_backward = achieved.attention_backward(),
                                   .memory = achieved.memory()},
                      .network = {.ranks_per_node = static_cast<int>(section.ranks_per_node()),
                                  .node = link_of(section.links.node, achieved.links()),
                                  .fabric = link_of(section.links.fabric, achieved.links())}};
  if (sheet.device == DeviceKind::cpu) {
    sheet.threads = static_cast<int>(compute.device.as<CpuOptions>().threads());
    return sheet;
  }
  const auto& gpu = compute.device.as<GpuOptions>();
  sheet.driver_name = gpu.driver_name().value_or("");
  sheet.multiprocessors = static_cast<int>(gpu.multiprocessors());
  sheet.fp8_flops = gpu.fp8_flops().value_or(0);
  sheet.tf32_flops = gpu.tf32_flops();
  return sheet;
}

HardwareSheet read_sheet(recipe::LoadRequest request) {
  request.kind = {.noun = "hardware sheet",
                  .version_key = "hardware",
                  .names = "a name of `llmtrain plan --help`"};
  request.builtin = builtin_sheet;
  request.foreign = {};
  SheetSection section;
  recipe::load(section, request);
  return sheet_from(section);
}

}  // namespace

HardwareSheet load_sheet(const std::filesystem::path& file) {
  HardwareSheet sheet = read_sheet({.file = file});
  sheet.file = file.string();
  return sheet;
}

HardwareSheet parse_sheet(const std::string& text, const std::filesystem::path& source) {
  HardwareSheet sheet = read_sheet({.file = source, .text = text});
  sheet.file = source.string();
  return sheet;
}

const std::vector<HardwareSheet>& hardware_sheets() {
  static const std::vector<HardwareSheet> sheets = [] {
    std::vector<HardwareSheet> all;
    for (const std::string_view name : builtin_sheet_names()) {
      all.push_back(read_sheet({.file = name, .text = builtin_sheet(name)}));
      all.back().name = name;
    }
    return all;
  }();
  return sheets;
}

const HardwareSheet* sheet_of(std::string_view driver_name, std::uint64_t memory_bytes) {
  // Cards of one model with as much memory have other rates.
  if (driver_name.find("PCIe") != std::string_view::npos) return nullptr;
  for (const HardwareSheet& sheet : hardware_sheets()) {
    if (sheet.driver_name.empty()) continue;
    const double share =
        static_cast<double>(memory_bytes) / static_cast<double>(sheet.memory_bytes);
    // Names of one model with other memory, like PCIe cards, have other rates.
    if (driver_name.find(sheet.driver_name) != std::string_view::npos && share > 0.95 &&
        share < 1.05) {
      return &sheet;
    }
  }
  return nullptr;
}

}  // namespace llmtrain::plan
