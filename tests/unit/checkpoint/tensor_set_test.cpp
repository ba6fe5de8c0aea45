#include "lib/checkpoint/tensor_set.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

void write_one(const std::filesystem::path& path, const std::string& name) {
  const std::vector<std::byte> bytes = noise(12, name, 0);
  write_safetensors(path, std::vector<TensorBytes>{{{name, StoredType::f32, {3}}, bytes}});
}

const std::string kIndex = "model.safetensors.index.json";

}  // namespace

TEST_CASE("a single file, a single-file directory and a sharded directory read alike") {
  const ScratchDir dir;
  write_one(dir.path() / "model.safetensors", "a");
  for (const auto& path : {dir.path(), dir.path() / "model.safetensors"}) {
    const TensorSet set = TensorSet::open(path);
    CHECK(set.names() == std::vector<std::string>{"a"});
    std::vector<std::byte> out(12);
    set.read_tensor("a", out);
    CHECK(out == noise(12, "a", 0));
    CHECK_THROWS_AS(set.entry("b"), CheckpointError);
  }

  write_one(dir.path() / "model-00001-of-00002.safetensors", "x");
  write_one(dir.path() / "model-00002-of-00002.safetensors", "y");
  spill(dir.path() / kIndex,
        R"({"metadata": {"total_size": 24, "more": [{"deep": null}]},
            "weight_map": {"x": "model-00001-of-00002.safetensors",
                           "y": "model-00002-of-00002.safetensors"}})"
        "\n");
  const TensorSet set = TensorSet::open(dir.path());
  CHECK(set.names() == std::vector<std::string>{"x", "y"});
  CHECK(set.file_of("y").path().filename() == "model-00002-of-00002.safetensors");
}

TEST_CASE("an index that does not fit its files is refused") {
  const ScratchDir dir;
  write_one(dir.path() / "1.safetensors", "x");
  write_one(dir.path() / "2.safetensors", "y");
  write_one(dir.path() / "3.safetensors", "x");
  const auto open = [&](const std::string& weight_map) {
    spill(dir.path() / kIndex, "{\"weight_map\":" + weight_map + "}");
    return TensorSet::open(dir.path()).names().size();
  };
  CHECK(open(R"({"x":"1.safetensors","y":"2.safetensors"})") == 2);
  for (const char* bad :
       {R"({"x":"2.safetensors","y":"1.safetensors"})",
        R"({"x":"1.safetensors","z":"1.safetensors"})",
        R"({"x":"1.safetensors","y":"../2.safetensors"})",
        R"({"x":"1.safetensors","x":"1.safetensors"})",
        R"({"x":"1.safetensors","y":"3.safetensors"})", R"({"x":1})", R"(["x"])", "null"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(open(bad), CheckpointError);
  }
  CHECK_THROWS_WITH_AS(open(R"({"x":"none.safetensors"})"),
                       doctest::Contains("lists none.safetensors, which is missing; fetch"),
                       CheckpointError);
  CHECK_THROWS_AS(parse_weight_map("{}", "test"), CheckpointError);
  CHECK_THROWS_AS(parse_weight_map(R"({"weight_map":{},"weight_map":{}})", "test"),
                  CheckpointError);
  std::filesystem::remove(dir.path() / kIndex);
  CHECK_THROWS_AS(TensorSet::open(dir.path()), CheckpointError);
}

}  // namespace llmtrain::checkpoint
