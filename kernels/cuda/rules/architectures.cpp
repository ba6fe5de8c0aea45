#include "kernels/cuda/rules/architectures.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

namespace {

/// One of the list: "90a-real" is {90, 'a', no PTX}.
struct Architecture {
  int number = 0;
  char variant = ' ';
  bool has_ptx = true;
};

Architecture parse(std::string_view text) {
  Architecture architecture;
  const std::string_view name = text.substr(0, text.find('-'));
  const char* const end = name.data() + name.size();
  const char* const digits_end = std::from_chars(name.data(), end, architecture.number).ptr;
  if (digits_end != end) architecture.variant = *digits_end;
  architecture.has_ptx = !text.ends_with("-real");
  return architecture;
}

/// Takes the first entry off a list with commas.
std::string_view take_entry(std::string_view& list) {
  const std::string_view entry = list.substr(0, list.find(','));
  list.remove_prefix(std::min(list.size(), entry.size() + 1));
  return entry;
}

bool runs_on(const Architecture& built, int capability) {
  if (built.number == 0) return true;
  if (built.variant == 'a') return built.number == capability;
  if (capability < built.number) return false;
  const bool same_major = capability / 10 == built.number / 10;
  return same_major || (built.has_ptx && built.variant == ' ');
}

}  // namespace

std::string architecture_problem(std::string_view built_for, int capability) {
  std::string names;
  while (!built_for.empty()) {
    const std::string_view entry = take_entry(built_for);
    if (runs_on(parse(entry), capability)) return "";
    names += fmt::format("{}sm_{}", names.empty() ? "" : ", ", entry.substr(0, entry.find('-')));
  }
  return fmt::format(
      "the CUDA plugin is built for {}; this GPU is sm_{}: build with "
      "-DCMAKE_CUDA_ARCHITECTURES={}",
      names, capability, capability == 90 ? "90a" : std::to_string(capability));
}

bool has_wgmma_code(std::string_view built_for) {
  while (!built_for.empty()) {
    const Architecture built = parse(take_entry(built_for));
    if (built.number == 0 || (built.number == 90 && built.variant == 'a')) return true;
  }
  return false;
}

}  // namespace llmtrain::kernels::cuda
