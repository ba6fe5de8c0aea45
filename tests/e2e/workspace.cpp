#include "tests/e2e/workspace.hpp"

#include <fstream>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/checkpointing.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

Workspace::Workspace(std::string_view recipe) {
  std::ofstream text(path / "text.txt");
  const PhiloxKey key = philox_key(3, "test", "text");
  for (std::uint64_t i = 0; i < 700; ++i) {
    text << "word" << philox_below(key, 0, i, 40) << (i % 9 == 8 ? "\n" : " ");
    if (i % 90 == 89) text << "\n";
  }
  write("recipe.yaml", recipe);
}

void Workspace::write(const std::string& name, std::string_view content) const {
  fs::create_directories((path / name).parent_path());
  std::ofstream(path / name, std::ios::binary) << content;
}

test::ProcessResult Workspace::call(std::vector<std::string> arguments,
                                    const test::ProcessEvents& events) const {
  arguments.insert(arguments.begin(), LLMTRAIN_EXECUTABLE);
  return test::run_process(arguments, path, events);
}

test::ProcessResult Workspace::run(const std::vector<std::string>& overrides,
                                   const test::ProcessEvents& events) const {
  std::vector<std::string> arguments{"run", "recipe.yaml"};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  return call(std::move(arguments), events);
}

std::vector<train::StepRecord> Workspace::metrics() const {
  return train::read_metrics(path / "run" / "metrics.jsonl");
}

std::int64_t Workspace::last_step() const {
  if (!fs::exists(path / "run" / "metrics.jsonl")) return 0;
  const auto records = metrics();
  return records.empty() ? 0 : records.back().step;
}

void run_well(const Workspace& here, const std::vector<std::string>& overrides) {
  const auto result = here.run(overrides);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
}

std::string fingerprint(const fs::path& where, std::uint64_t step) {
  const auto store = checkpoint::CheckpointStore::open_reader(where / "run" / "checkpoints");
  checkpoint::Manifest manifest = store.load(step).manifest();
  std::string text;
  for (const auto& [name, file] : manifest.files) text += to_hex(file.xxh3_128) + "\n";
  // Hashes are taken as bytes pass by; what lies on the disk has them, too.
  text += checkpoint::to_string(store.verify(step, checkpoint::VerifyLevel::hash));
  for (auto& [key, value] : manifest.run.state) {
    // Wall-clock times; the records are in metrics.jsonl too.
    if (key == "loop.elapsed_seconds" || key == train::kRecordsKey) continue;
    text += key + "=" +
            std::visit(
                [](const auto& v) {
                  using V = std::decay_t<decltype(v)>;
                  if constexpr (std::is_same_v<V, std::string>) {
                    return v;
                  } else {
                    return std::to_string(v);
                  }
                },
                value) +
            "\n";
  }
  text += std::to_string(manifest.run.data_cursor.epoch) + "/" +
          std::to_string(manifest.run.data_cursor.index) + "\n";
  for (const train::StepRecord& record : train::read_metrics(where / "run" / "metrics.jsonl")) {
    if (record.step <= static_cast<std::int64_t>(step)) {
      text += train::reproducible_line(record) + "\n";
    }
  }
  return text;
}

std::int64_t number_after(const std::string& output, std::string_view text) {
  const std::size_t at = output.rfind(text);
  return at == std::string::npos ? -1 : std::stoll(output.substr(at + text.size()));
}

bool holds(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return false;
  }
  return true;
}

}  // namespace llmtrain
