#include "lib/checkpoint/store.hpp"

#include <algorithm>
#include <set>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

void damage(const fs::path& shard) {
  std::string bytes = slurp(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spill(shard, bytes);
}

fs::path first_shard(const CheckpointStore& store, std::uint64_t step) {
  return store.directory_of(step) / "shard-0000-0000.safetensors";
}

}  // namespace

TEST_CASE("a saved step is listed, valid, hinted as latest and holds what was saved") {
  const ScratchDir dir;
  const fs::path root = dir.path() / "a" / "b";
  CheckpointStore store = CheckpointStore::open_writer(root);
  CHECK(store.list().empty());
  CHECK_FALSE(store.newest_valid(VerifyLevel::hash).step.has_value());
  for (const std::uint64_t step : {5u, 100u, 20u}) save_small(store, step);

  CHECK(store.list() == std::vector<std::uint64_t>{5, 20, 100});
  CHECK(store.newest_valid(VerifyLevel::hash).step == 100u);
  CHECK(store.newest_valid(VerifyLevel::hash).rejected.empty());
  CHECK(holds_small(store, 5));
  CHECK(holds_small(store, 100));
  CHECK(slurp(root / "latest") == "step-00000020\n");
  CHECK(names_in(root) ==
        std::set<std::string>{"latest", "lock", "step-00000005", "step-00000020", "step-00000100"});
}

TEST_CASE("max_shard_bytes splits a checkpoint, and a box above it gets a file of its own") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 300});
  save_small(store, 1);
  // In saving order: 416, 256, 512, 32, 8 bytes.
  CHECK(store.load(1).manifest().files.size() == 4);
  CHECK(holds_small(store, 1));
  CHECK(store.verify(1, VerifyLevel::hash).empty());
}

TEST_CASE("checkpoints that are set aside are listed by themselves, and stay") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  for (const std::uint64_t step : {2u, 4u, 6u}) save_small(store, step);
  store.set_aside(6, ".aside-1");
  CHECK(store.list_aside().empty());
  store.set_aside(2, ".aside-2");
  const fs::path four = dir.path() / "step-00000004.aside-2";
  const fs::path six = dir.path() / "step-00000006.aside-2";
  CHECK(store.list().empty());  // retention has taken step 2
  CHECK(store.list_aside() == std::vector<fs::path>{four, six});
  for (const std::uint64_t step : {3u, 4u, 6u, 8u}) save_small(store, step);
  CHECK(store.list() == std::vector<std::uint64_t>{6, 8});
  CHECK(slurp(dir.path() / "latest") == "step-00000008\n");
  store.set_aside(6, ".aside-3");
  CHECK(slurp(dir.path() / "latest") == "step-00000006\n");
  CHECK(store.list() == std::vector<std::uint64_t>{6});
  CHECK(store.list_aside().size() == 3);
  // Whoever comes next leaves them alone, and one that gets its name back is a checkpoint again.
  { const CheckpointStore kept = std::move(store); }
  CheckpointStore next = CheckpointStore::open_writer(dir.path());
  CHECK(next.list_aside().size() == 3);
  fs::rename(four, next.directory_of(4));
  CHECK(next.verify(4, VerifyLevel::hash).empty());
  CHECK(holds_small(next, 4));
}

TEST_CASE("saving a step again replaces it") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  damage(first_shard(store, 1));
  REQUIRE_FALSE(store.verify(1, VerifyLevel::hash).empty());
  save_small(store, 1);
  CHECK(holds_small(store, 1));
  CHECK(store.verify(1, VerifyLevel::hash).empty());
  CHECK(names_in(dir.path()) == std::set<std::string>{"latest", "lock", "step-00000001"});
}

TEST_CASE(
    "boxes that do not tile their tensor, or disagree, are refused and leave nothing behind") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  const std::vector<WholeTensor> state = small_state(1);
  std::vector<TensorBox> boxes = whole_boxes(state);
  boxes[0].box.shape[0] = 12;
  boxes[0].bytes = boxes[0].bytes.first(12 * 8 * 4);
  CHECK(message_of([&] { store.save(1, boxes, {}); }).find("exactly once") != std::string::npos);
  boxes = whole_boxes(state);
  boxes.push_back(boxes[0]);
  CHECK(message_of([&] { store.save(1, boxes, {}); }).find("twice") != std::string::npos);
  boxes.back().dtype = DType::i32;
  boxes.back().name = boxes[1].name;
  CHECK_FALSE(message_of([&] { store.save(1, boxes, {}); }).empty());
  CHECK(names_in(dir.path()) == std::set<std::string>{"lock"});
}

TEST_CASE("the pre-flight names what is needed and what is free, and writes nothing") {
  const ScratchDir dir;
  std::uint64_t free_bytes = 1'000'000;
  CheckpointStore store = CheckpointStore::open_writer(
      dir.path(), {.free_bytes = [&](const fs::path&) { return free_bytes; }});
  CHECK_NOTHROW(store.check_free_space(833'333));
  CHECK_THROWS_AS(store.check_free_space(833'340), StorageError);
  free_bytes = 1000;  // the state has 1224 bytes
  const std::string message = message_of([&] { save_small(store, 1); });
  CHECK(message.find("1.43 KiB") != std::string::npos);
  CHECK(message.find("1000 B") != std::string::npos);
  CHECK(names_in(dir.path()) == std::set<std::string>{"lock"});
}

TEST_CASE("newest_valid walks back over every kind of damage and says why") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 600});
  for (std::uint64_t step = 1; step <= 7; ++step) save_small(store, step);
  damage(first_shard(store, 7));
  fs::resize_file(first_shard(store, 6), 100);
  fs::remove(first_shard(store, 5));
  fs::remove(store.directory_of(4) / "manifest.json");
  fs::copy_file(first_shard(store, 1), first_shard(store, 3), fs::copy_options::overwrite_existing);
  fs::remove_all(store.directory_of(2));
  fs::copy(store.directory_of(1), store.directory_of(2), fs::copy_options::recursive);

  const NewestValid found = store.newest_valid(VerifyLevel::hash);
  CHECK(found.step == 1u);
  REQUIRE(found.rejected.size() == 6);
  CHECK(found.rejected[0].step == 7);
  CHECK(found.rejected[0].reason.find("does not match the hash") != std::string::npos);
  CHECK(found.rejected[1].reason.find("has 100 bytes, the manifest says") != std::string::npos);
  CHECK(found.rejected[2].reason.find("No such file") != std::string::npos);
  CHECK(found.rejected[3].reason.find("manifest.json") != std::string::npos);
  CHECK(found.rejected[4].reason.find("hash") != std::string::npos);
  CHECK(found.rejected[5].reason.find("is of step 1, the directory of step 2") !=
        std::string::npos);
  CHECK(store.newest_valid(VerifyLevel::header).step == 7u);  // a payload bit is not in a header
}

TEST_CASE("verify names file and tensor when a whole valid file is of the wrong content") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  std::vector<WholeTensor> state = small_state(1);
  state[0].dtype = DType::i32;
  state[3].name = "model.norm.bias.xx";  // the manifest would then expect model.norm.weight
  CheckpointStore other = CheckpointStore::open_writer(dir.path() / "other");
  other.save(1, whole_boxes(state), small_run(1));
  fs::copy_file(first_shard(other, 1), first_shard(store, 1), fs::copy_options::overwrite_existing);
  Manifest manifest = read_manifest(store.directory_of(1));
  manifest.files = read_manifest(other.directory_of(1)).files;
  spill(store.directory_of(1) / "manifest.json", format_manifest(manifest));

  const std::vector<Problem> problems = store.verify(1, VerifyLevel::header);
  std::set<std::string> tensors;
  for (const Problem& problem : problems) tensors.insert(problem.tensor);
  CHECK(tensors == std::set<std::string>{"model.embed_tokens.weight", "model.norm.weight",
                                         "model.norm.bias.xx"});
  std::vector<std::byte> out(416);
  CHECK_THROWS_AS(store.load(1).read_box(
                      {"model.embed_tokens.weight", DType::f32, {13, 8}, whole_box({13, 8})}, out),
                  CheckpointError);
}

TEST_CASE("a shard or a manifest that is a link is refused") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  for (const char* file : {"shard-0000-0000.safetensors", "manifest.json"}) {
    save_small(store, 1);
    const fs::path path = store.directory_of(1) / file;
    fs::rename(path, dir.path() / "elsewhere");
    fs::create_symlink(dir.path() / "elsewhere", path);
    CHECK(store.verify(1, VerifyLevel::header).size() == 1);
  }
}

TEST_CASE(
    "directories of other names are not checkpoints, and leftovers are cleared by a writer only") {
  const ScratchDir dir;
  {
    CheckpointStore store = CheckpointStore::open_writer(dir.path());
    save_small(store, 3);
    save_small(store, 4);
  }
  const std::vector<std::string> foreign{"step-3", "step-000000003", "step-0000000x",
                                         "step-",  "notes",          "data.tmp-1"};
  for (const std::string& name : foreign) fs::create_directory(dir.path() / name);
  fs::rename(dir.path() / "step-00000004", dir.path() / "step-00000004.old-77");
  fs::create_directory(dir.path() / "step-00000003.old-78");
  fs::create_directory(dir.path() / "step-00000009.tmp-79");
  fs::create_directory(dir.path() / ".trash-step-00000001-80");
  spill(dir.path() / "latest.tmp-81", "x");
  spill(dir.path() / "step-00000008", "a file");

  const CheckpointStore reader = CheckpointStore::open_reader(dir.path());
  CHECK(reader.list() == std::vector<std::uint64_t>{3, 8});
  CHECK(fs::exists(dir.path() / "step-00000009.tmp-79"));

  const CheckpointStore store = CheckpointStore::open_writer(dir.path());
  CHECK(store.list() == std::vector<std::uint64_t>{3, 4, 8});
  CHECK(holds_small(store, 4));
  std::set<std::string> expected{"latest", "lock", "step-00000003", "step-00000004",
                                 "step-00000008"};
  expected.insert(foreign.begin(), foreign.end());
  CHECK(names_in(dir.path()) == expected);
}

TEST_CASE(
    "what has a checkpoint's name and is none is damaged, and the next save of its step replaces "
    "it") {
  const ScratchDir dir, archive;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  save_small(store, 1);
  save_small(store, 2);
  const auto nowhere = [&](std::uint64_t step) {
    fs::create_directory_symlink(archive.path() / "not mounted", store.directory_of(step));
  };
  const auto file = [&](std::uint64_t step) { spill(store.directory_of(step), "a file"); };
  nowhere(3);
  file(4);

  const NewestValid found = store.newest_valid(VerifyLevel::hash);
  CHECK(found.step == 2u);
  REQUIRE(found.rejected.size() == 2);
  CHECK(found.rejected.front().step == 4);
  CHECK(store.list() == std::vector<std::uint64_t>{1, 2, 3, 4});

  save_small(store, 3);
  save_small(store, 4);
  CHECK(holds_small(store, 3));
  CHECK(store.list() == std::vector<std::uint64_t>{3, 4});
  nowhere(1);  // older than what stays
  file(2);
  save_small(store, 5);
  CHECK(names_in(dir.path()) ==
        std::set<std::string>{"latest", "lock", "step-00000004", "step-00000005"});
}

TEST_CASE(
    "a directory that nobody can look into has no checkpoints that are not there, it is an error") {
  const ScratchDir dir;
  fs::create_symlink("loop", dir.path() / "loop");
  CHECK_THROWS_AS(CheckpointStore::open_reader(dir.path() / "loop").list(), StorageError);
  CHECK_THROWS_AS(CheckpointStore::open_reader(dir.path() / "loop" / "below").list(), StorageError);
  CHECK_THROWS_AS(CheckpointStore::open_writer(dir.path() / "loop" / "below"), StorageError);
  spill(dir.path() / "file", "x");
  CHECK_THROWS_AS(CheckpointStore::open_reader(dir.path() / "file").list(), StorageError);
  CHECK(CheckpointStore::open_reader(dir.path() / "missing").list().empty());
}

TEST_CASE("retention keeps the newest, the milestones and two that are verified") {
  const ScratchDir dir;
  CHECK_THROWS_AS(CheckpointStore::open_writer(dir.path(), {.keep_last = 1}), RecipeError);
  CheckpointStore store =
      CheckpointStore::open_writer(dir.path(), {.keep_last = 3, .keep_every = 4});
  for (std::uint64_t step = 1; step <= 10; ++step) save_small(store, step);
  CHECK(store.list() == std::vector<std::uint64_t>{4, 8, 9, 10});
}

TEST_CASE(
    "retention never deletes the last two valid checkpoints, however many newer are damaged") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  save_small(store, 1);
  save_small(store, 2);
  for (std::uint64_t step = 3; step <= 8; ++step) {
    std::vector<WholeTensor> state = small_state(step);
    {
      CheckpointStore side = CheckpointStore::open_writer(dir.path() / "side");
      save_small(side, step);
      damage(first_shard(side, step));
      fs::rename(side.directory_of(step), store.directory_of(step));
    }
    CHECK_THROWS_AS(store.apply_retention(), InternalError);  // before anybody has looked
    for (auto unknown = store.steps_to_verify(); !unknown.empty();
         unknown = store.steps_to_verify()) {
      const std::uint64_t at = unknown.front();
      store.note_verified(at, store.verify(at, VerifyLevel::hash_on_disk));
    }
    store.apply_retention();
    CHECK(holds_small(store, 1));
    CHECK(holds_small(store, 2));
    CHECK(store.newest_valid(VerifyLevel::hash).step == 2u);
  }
  CHECK(store.list() == std::vector<std::uint64_t>{1, 2, 7, 8});
  save_small(store, 9);
  CHECK(store.list() == std::vector<std::uint64_t>{2, 8, 9});
  save_small(store, 10);
  CHECK(store.list() == std::vector<std::uint64_t>{9, 10});
}

TEST_CASE("retention deletes nothing where no two checkpoints are known to be valid") {
  for (const bool is_unread : {false, true}) {
    const ScratchDir dir;
    CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
    {
      CheckpointStore side = CheckpointStore::open_writer(dir.path() / "side");
      for (std::uint64_t step = 1; step <= 4; ++step) {
        save_small(side, step);
        fs::rename(side.directory_of(step), store.directory_of(step));
      }
    }
    for (auto unknown = store.steps_to_verify(); !unknown.empty();
         unknown = store.steps_to_verify()) {
      const Problem problem{"shard", "", "told by a test", is_unread};
      store.note_verified(unknown.front(), std::span(&problem, 1));
    }
    CHECK(store.apply_retention().empty());
    CHECK(store.list() == std::vector<std::uint64_t>{1, 2, 3, 4});
    if (!is_unread) continue;
    save_small(store, 5);  // all are read again
    CHECK(store.list() == std::vector<std::uint64_t>{4, 5});
  }
}

TEST_CASE("retention leaves what could not be read, beside two that are valid") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  {
    CheckpointStore side = CheckpointStore::open_writer(dir.path() / "side");
    for (std::uint64_t step = 1; step <= 5; ++step) {
      save_small(side, step);
      fs::rename(side.directory_of(step), store.directory_of(step));
    }
  }
  for (auto unknown = store.steps_to_verify(); !unknown.empty();
       unknown = store.steps_to_verify()) {
    const bool is_read = unknown.front() == 5 || unknown.front() == 2;
    const Problem problem{"shard", "", "cannot read", true};
    store.note_verified(unknown.front(), is_read ? std::vector<Problem>() : std::vector{problem});
  }
  CHECK(store.apply_retention() == std::vector<std::uint64_t>{1});
  CHECK(store.list() == std::vector<std::uint64_t>{2, 3, 4, 5});
}

TEST_CASE("a crash's leftovers are counted as room that the next writer has") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  CHECK(store.leftover_bytes() == 0);
  fs::create_directories(dir.path() / "step-00000002.tmp-1");
  spill(dir.path() / "step-00000002.tmp-1" / "shard", std::string(1000, 'x'));
  fs::create_directories(dir.path() / ".trash-step-00000000-1");
  spill(dir.path() / ".trash-step-00000000-1" / "shard", std::string(500, 'x'));
  CHECK(store.leftover_bytes() == 1500);
  CHECK(CheckpointStore::open_reader(dir.path() / "missing").leftover_bytes() == 0);
}

TEST_CASE("retention takes a linked checkpoint for one, and deletes the link alone") {
  const ScratchDir dir, archive;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  save_small(store, 1);
  const fs::path there = archive.path() / "step-00000001";
  fs::rename(store.directory_of(1), there);
  fs::create_directory_symlink(there, store.directory_of(1));
  CHECK(store.verify(1, VerifyLevel::hash).empty());
  const auto files = names_in(there);
  for (const std::uint64_t step : {2u, 3u, 4u}) save_small(store, step);
  CHECK(store.list() == std::vector<std::uint64_t>{3, 4});
  CHECK(names_in(there) == files);
  CHECK(verify_checkpoint(there, 1, VerifyLevel::hash).empty());
}

TEST_CASE("several writers fill one checkpoint, and it does not show") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  const WholeTensor tensor = whole_tensor("w", DType::f32, {10, 4}, 1);
  std::vector<WrittenShards> shards;
  {
    PendingSave pending = store.begin_save(1);
    for (int writer = 0; writer < 3; ++writer) {
      const Box box{{writer * 3, 0}, {writer == 2 ? 4 : 3, 4}};
      const std::vector<std::byte> values = cut(tensor, box);
      const std::vector<TensorBox> boxes{{"w", DType::f32, {10, 4}, box, values}};
      shards.push_back(write_shards(pending.directory(), boxes, {.writer = writer}));
    }
    pending.commit(small_run(1), shards);
  }
  CHECK(store.verify(1, VerifyLevel::hash).empty());
  std::vector<std::byte> out(tensor.bytes.size());
  store.load(1).read_box({"w", DType::f32, {10, 4}, whole_box({10, 4})}, out);
  CHECK(out == tensor.bytes);
}

}  // namespace llmtrain::checkpoint
