// memory_probe itself | steps FAMILY [KEY=VALUE...] [OPTION...] | loop
// [--fault=NAME]
#include <exception>

#include <fmt/format.h>

#include "lib/base/units.hpp"
#include "tests/memory/probe/probes.hpp"

namespace {

// Takes --name=value out of the words; the last one counts.
std::string option(std::vector<std::string>& words, std::string_view name, std::string value) {
  const std::string head = fmt::format("--{}=", name);
  std::erase_if(words, [&](const std::string& word) {
    if (!word.starts_with(head)) return false;
    value = word.substr(head.size());
    return true;
  });
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace llmtrain;
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const std::string fault = option(words, "fault", "");
    const int steps = std::stoi(option(words, "steps", "3"));
    const std::uint64_t at_least = parse_bytes(option(words, "at-least", "0")).value();
    if (words.size() == 1 && words[0] == "itself") return memory_probe::probe_itself();
    if (words.size() == 1 && words[0] == "loop") return memory_probe::probe_loop(fault);
    if (words.size() >= 2 && words[0] == "steps") {
      return memory_probe::probe_steps(words[1], {words.begin() + 2, words.end()}, steps, at_least,
                                       fault);
    }
    fmt::print(
        "usage: memory_probe itself | loop [--fault=NAME] | steps FAMILY [KEY=VALUE...] "
        "[--steps=N] [--at-least=BYTES] [--fault=NAME]\n");
  } catch (const std::exception& error) {
    fmt::print("{}\n", error.what());
  }
  return 2;
}
