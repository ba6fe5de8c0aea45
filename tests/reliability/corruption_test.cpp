// Bytes that are not what was written: T6 of docs/reliability.md.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/philox.hpp"
#include "lib/checkpoint/safetensors.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

const Layout kLayout{.ranks = 2};

void spill(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Puts back whatever a case has done to one file.
class Damaged {
 public:
  explicit Damaged(fs::path path) : path_(std::move(path)), good_(read_file(path_)) {}
  ~Damaged() {
    fs::remove_all(path_);
    spill(path_, good_);
  }
  Damaged(const Damaged&) = delete;
  Damaged& operator=(const Damaged&) = delete;
  const std::string& good() const { return good_; }

 private:
  fs::path path_;
  std::string good_;
};

struct Corruption {
  std::string name;
  std::function<void(const fs::path& file, const std::string& good)> apply;
  std::string tensor = {};  // that must be named
};

void add_sizes(std::vector<Corruption>& list, std::size_t header, std::size_t size) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8},
                                   header - 1, header, size / 2, size - 1}) {
    list.push_back({fmt::format("cut to {}", length), [length](const fs::path& file, const auto&) {
                      fs::resize_file(file, length);
                    }});
  }
  list.push_back({"a byte more",
                  [](const fs::path& file, const std::string& good) { spill(file, good + '\0'); }});
}

Corruption flip(std::size_t at, std::string tensor = {}) {
  return {fmt::format("bit {} of byte {}", at % 8, at),
          [at](const fs::path& file, const std::string& good) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
            spill(file, bad);
          },
          std::move(tensor)};
}

void add_other_things(std::vector<Corruption>& list, const fs::path& other_step) {
  list.push_back({"missing", [](const fs::path& file, const auto&) { fs::remove(file); }});
  list.push_back({"a directory", [](const fs::path& file, const auto&) {
                    fs::remove(file);
                    fs::create_directory(file);
                  }});
  list.push_back({"a link to its bytes", [](const fs::path& file, const std::string& good) {
                    const fs::path elsewhere = file.string() + ".elsewhere";
                    spill(elsewhere, good);
                    fs::remove(file);
                    fs::create_symlink(elsewhere, file);
                  }});
  list.push_back({"another step's", [other_step](const fs::path& file, const auto&) {
                    fs::copy_file(other_step / file.filename(), file,
                                  fs::copy_options::overwrite_existing);
                  }});
}

/// The tensor of a stored entry, whose name may end with the place of the box.
std::string tensor_of(const std::string& name_in_file) {
  return name_in_file.substr(0, name_in_file.find('@'));
}

std::vector<Corruption> corruptions_of_shard(const fs::path& path, const fs::path& other_step) {
  const auto shard = checkpoint::SafetensorsFile::open(path);
  const std::string bytes = read_file(path);
  const std::size_t header = shard.entries().front().offset;
  std::vector<Corruption> list;
  add_sizes(list, header, bytes.size());
  for (std::size_t at = 0; at < header; ++at) list.push_back(flip(at));
  const PhiloxKey key = philox_key(6, "test", path.filename().string());
  for (std::uint64_t draw = 0; draw < 256; ++draw) {
    const std::size_t at = header + philox_below(key, 0, draw, bytes.size() - header);
    const auto hit =
        std::find_if(shard.entries().begin(), shard.entries().end(),
                     [&](const auto& e) { return at >= e.offset && at < e.offset + e.bytes; });
    list.push_back(flip(at, tensor_of(hit->name)));
  }
  // The first page of the values of each tensor that has one, and is not zero already.
  for (const auto& entry : shard.entries()) {
    const std::size_t page = std::min<std::size_t>(4096, entry.bytes);
    if (bytes.substr(entry.offset, page) == std::string(page, '\0')) continue;
    list.push_back({fmt::format("zeros at {}", entry.offset),
                    [at = entry.offset, page](const fs::path& file, const std::string& good) {
                      spill(file, std::string(good).replace(at, page, page, '\0'));
                    },
                    tensor_of(entry.name)});
  }
  add_other_things(list, other_step);
  return list;
}

/// The tensor of a manifest's line.
std::string tensor_at(const std::string& manifest, std::size_t at) {
  const std::size_t name = manifest.find('"', manifest.rfind('\n', at)) + 1;
  return manifest.substr(name, manifest.find('"', name) - name);
}

std::vector<Corruption> corruptions_of_manifest(const fs::path& path, const fs::path& other_step) {
  std::vector<Corruption> list;
  const std::size_t size = fs::file_size(path);
  add_sizes(list, size / 3, size);
  for (std::size_t at = 0; at < size; ++at) list.push_back(flip(at));
  add_other_things(list, other_step);
  // Sealed again, as by somebody who knows the format.
  const std::string whole = read_file(path);
  const auto edit = [&](const std::string& name, const std::string& from, const std::string& to,
                        std::string tensor = {}) {
    list.push_back({name,
                    [from, to](const fs::path& file, const std::string& good) {
                      std::string body = good.substr(0, good.find(",\n  \"xxh3_128_of_the_above"));
                      body.replace(body.find(from), from.size(), to);
                      spill(file, body + checkpoint::manifest_seal(body));
                    },
                    std::move(tensor)});
  };
  const auto edit_tensor = [&](const std::string& name, const std::string& from,
                               const std::string& to) {
    edit(name, from, to, tensor_at(whole, whole.find(from)));
  };
  edit("a newer format", "\"format_version\": 2", "\"format_version\": 3");
  edit("an older format", "\"format_version\": 2", "\"format_version\": 0");
  edit("another step", "\"step\": 6", "\"step\": 4");
  edit_tensor("no dtype", "\"dtype\": \"fp32\"", "\"dtype\": \"int32\"");
  edit_tensor("a narrower dtype", "\"dtype\": \"fp32\"", "\"dtype\": \"bf16\"");
  edit_tensor("a wider dtype", "\"dtype\": \"fp32\"", "\"dtype\": \"fp64\"");
  edit_tensor("another shape", "\"shape\": [257, 64]", "\"shape\": [64, 257]");
  edit_tensor("another file", "\"file\": \"shard-0000-0000", "\"file\": \"shard-0000-0001");
  edit("a path", "\"file\": \"shard-0000-0000", "\"file\": \"../shard-0000-0000");
  edit("another size", "{\"bytes\": ", "{\"bytes\": 1");
  return list;
}

/// A manifest that contradicts itself is told in words.
bool tells_of(const checkpoint::Problem& problem, const std::string& tensor) {
  return tensor.empty() || problem.tensor == tensor ||
         problem.reason.find(fmt::format("tensor '{}'", tensor)) < problem.reason.size();
}

/// Whether the damage is found before anything is used, by file and tensor.
std::string check_found(const checkpoint::CheckpointStore& store, const fs::path& file,
                        const Corruption& corruption) {
  const auto problems = store.verify(6, checkpoint::VerifyLevel::hash);
  if (problems.empty()) return "not found";
  // What a manifest says wrongly of a shard is found at the shard.
  const bool anywhere = file.filename() == "manifest.json";
  const bool named = std::any_of(problems.begin(), problems.end(), [&](const auto& problem) {
    return (anywhere || problem.file == file.filename()) && tells_of(problem, corruption.tensor);
  });
  if (!named) return to_string(problems.front());
  const auto found = store.newest_valid(checkpoint::VerifyLevel::hash);
  if (found.step != 4u) return "it does not fall back to step 4";
  return found.rejected.size() == 1 && !found.rejected[0].reason.empty() ? "" : "no reason";
}

}  // namespace

TEST_CASE("T6 whatever happens to a file of a checkpoint is found, and told by file and tensor") {
  Journal journal("T6", 23);
  const Job& job = prepared_job(kLayout, 6);
  const auto store = checkpoint::CheckpointStore::open_reader(job.checkpoints());
  REQUIRE(store.newest_valid(checkpoint::VerifyLevel::hash).step == 6u);
  const fs::path folder = store.directory_of(6), other = store.directory_of(4);
  int cases = 0, of_tensors = 0;
  const auto try_all = [&](const fs::path& file, const std::vector<Corruption>& corruptions) {
    for (const Corruption& corruption : corruptions) {
      ++cases;
      of_tensors += !corruption.tensor.empty();
      journal.run(file.filename().string() + ": " + corruption.name, [&] {
        const Damaged damaged(file);
        corruption.apply(file, damaged.good());
        return check_found(store, file, corruption);
      });
    }
  };
  std::vector<fs::path> shards;
  for (const auto& [name, record] : checkpoint::read_manifest(folder).files) {
    shards.push_back(folder / name);
  }
  REQUIRE(shards.size() >= 4);
  for (const fs::path& shard : shards) try_all(shard, corruptions_of_shard(shard, other));
  try_all(folder / "manifest.json", corruptions_of_manifest(folder / "manifest.json", other));
  for (std::size_t i = 0; i + 1 < shards.size(); ++i) {
    ++cases;
    journal.run(fmt::format("shards {} and {} swapped", i, i + 1), [&]() -> std::string {
      const Damaged a(shards[i]), b(shards[i + 1]);
      spill(shards[i], b.good());
      spill(shards[i + 1], a.good());
      const auto problems = store.verify(6, checkpoint::VerifyLevel::hash);
      for (const std::size_t of : {i, i + 1}) {
        const bool named = std::any_of(problems.begin(), problems.end(), [&](const auto& problem) {
          return problem.file == shards[of].filename();
        });
        if (!named) return fmt::format("of {} nothing was found", shards[of].filename().string());
      }
      return "";
    });
  }
  CHECK(cases >= 1000);
  CHECK(of_tensors >= 1000);  // whose name is asked for
  CHECK(store.newest_valid(checkpoint::VerifyLevel::hash).step == 6u);
  journal.check();
}

// The same by the program: what goes on by itself falls back and says so, what was asked for a step
// does not.
TEST_CASE("T6 a run falls back to an older checkpoint aloud, and who names a step gets no other") {
  Journal journal("T6-runs", 7);
  const Job& clean = prepared_job(kLayout, 6);
  const auto corruptions = [&](const fs::path& folder) {
    const fs::path shard = folder / "shard-0001-0000.safetensors";
    std::vector<std::pair<fs::path, Corruption>> list;
    const std::size_t size = fs::file_size(shard);
    for (const std::size_t at : {std::size_t{3}, std::size_t{40}, size / 2, size - 1}) {
      list.emplace_back(shard, flip(at));
    }
    std::vector<Corruption> others;
    add_sizes(others, 100, size);
    add_other_things(others, folder.parent_path() / "step-00000004");
    for (const Corruption& c : others) {
      list.emplace_back(shard, c);
      list.emplace_back(folder / "manifest.json", c);
    }
    return list;
  };
  for (const auto& [file, corruption] : corruptions(clean.checkpoints() / "step-00000006")) {
    journal.run(file.filename().string() + ": " + corruption.name, [&]() -> std::string {
      const Job job(kLayout, &clean);
      const fs::path damaged = job.checkpoints() / "step-00000006" / file.filename();
      corruption.apply(damaged, read_file(damaged));
      const ProcessResult asked = run_process({LLMTRAIN_EXECUTABLE, "eval", "run", "--step", "6"},
                                              job.directory().string(), {.limit_seconds = 60});
      if (asked.exit_code != 4 || asked.output.find(file.filename()) == std::string::npos) {
        return fmt::format("eval of step 6: exit code {}: {}", asked.exit_code, asked.output);
      }
      const ProcessResult again = job.run();
      if (again.exit_code != 0 ||
          again.output.find("checkpoint of step 6 is not used: ") == std::string::npos ||
          again.output.find("resumed from step 4") == std::string::npos) {
        return fmt::format("the run: exit code {}: {}", again.exit_code, again.output);
      }
      return job.fingerprint(6) == expected_fingerprint(kLayout) ? "" : "ends with another state";
    });
  }
  // A hint for people, which no run goes by.
  const std::vector<std::pair<std::string, std::string>> hints{
      {"empty", ""},
      {"bytes", std::string("\0\xff\n", 3)},
      {"an older step", "step-00000004\n"},
      {"no step", "step-00000005\n"},
      {"another place", "../../other\n"}};
  for (const auto& [name, text] : hints) {
    journal.run("latest: " + name, [&]() -> std::string {
      const Job job(kLayout, &clean);
      spill(job.checkpoints() / "latest", text);
      const ProcessResult again = job.run();
      if (again.exit_code != 0 || again.output.find("resumed from step 6") == std::string::npos) {
        return fmt::format("the run: exit code {}: {}", again.exit_code, again.output);
      }
      return job.fingerprint(6) == expected_fingerprint(kLayout) ? "" : "ends with another state";
    });
  }
  journal.check();
}

}  // namespace llmtrain::test
