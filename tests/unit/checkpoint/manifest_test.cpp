#include "lib/checkpoint/manifest.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

Manifest small_manifest() {
  Manifest manifest{.step = 1200, .run = small_run(1200), .files = {}, .tensors = {}};
  manifest.files["shard-0000-0000.safetensors"] = {4096, hash128(std::string_view("a"))};
  manifest.files["shard-0001-0000.safetensors"] = {64, hash128(std::string_view("b"))};
  manifest.tensors["w"] = {DType::bf16,
                           {4, 6},
                           {{{{0, 0}, {4, 2}}, "shard-0000-0000.safetensors", "w@0,0"},
                            {{{0, 2}, {4, 4}}, "shard-0001-0000.safetensors", "w@0,2"}}};
  manifest.tensors["s"] = {DType::i64, {}, {{{}, "shard-0000-0000.safetensors", "s"}}};
  return manifest;
}

/// The text with one replacement, sealed again, so that only the replacement can be the reason.
std::string edited(const std::string& from, const std::string& to) {
  const std::string text = format_manifest(small_manifest());
  std::string body = text.substr(0, text.size() - manifest_seal("").size());
  const std::size_t at = body.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  body.replace(at, from.size(), to);
  return body + manifest_seal(body);
}

std::string error_of(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a manifest reads back equal, with every kind of scalar") {
  Manifest manifest = small_manifest();
  manifest.run.recipe = "a: \"b\"\n\tc: \xC3\xA9\\\n";
  for (const double value : {0.0, 1.0, 0.1, -1e-300, 1e22, 1.7976931348623157e308, 5e-324}) {
    manifest.run.state["d" + std::to_string(manifest.run.state.size())] = value;
  }
  manifest.run.state["negative zero"] = -0.0;
  manifest.run.state["i"] = std::numeric_limits<std::int64_t>::min();
  manifest.run.state["t"] = std::string("text");
  manifest.run.state["f"] = false;
  const Manifest back = parse_manifest(format_manifest(manifest), "m.json");
  CHECK(back == manifest);
  CHECK(std::signbit(double_at(back.run.state, "negative zero")));
}

// Lines of metrics that are not on the disk yet: diagnostics of a deep model are many.
TEST_CASE("a text among what a run is at is as long as it is") {
  Manifest manifest = small_manifest();
  manifest.run.state["long"] = std::string(std::size_t{5} << 20, 'x');
  CHECK(parse_manifest(format_manifest(manifest), "m") == manifest);
}

TEST_CASE("non-finite doubles survive as scalars") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Manifest manifest = small_manifest();
  manifest.run.state = {{"inf", scalar_of(kInfinity)},
                        {"ninf", scalar_of(-kInfinity)},
                        {"nan", scalar_of(std::nan(""))},
                        {"one", scalar_of(1.0)},
                        {"int", std::int64_t{1}}};
  const auto state = parse_manifest(format_manifest(manifest), "m").run.state;
  CHECK(double_at(state, "inf") == kInfinity);
  CHECK(double_at(state, "ninf") == -kInfinity);
  CHECK(std::isnan(double_at(state, "nan")));
  CHECK(double_at(state, "one") == 1.0);
  CHECK_THROWS_AS(double_at(state, "int"), CheckpointError);
  CHECK_THROWS_AS(double_at(state, "none"), CheckpointError);
}

TEST_CASE("any flipped bit, any cut and any addition breaks the seal") {
  const std::string text = format_manifest(small_manifest());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      CHECK_THROWS_AS(parse_manifest(damaged, "m"), CheckpointError);
    }
    CHECK_THROWS_AS(parse_manifest(text.substr(0, i), "m"), CheckpointError);
  }
  CHECK_THROWS_AS(parse_manifest(text + "\n", "m"), CheckpointError);
  CHECK_NOTHROW(parse_manifest(text, "m"));
}

TEST_CASE("a sealed manifest that breaks a rule is refused with the rule") {
  struct Edit {
    std::string from, to, message;
  };
  const std::string file = "shard-0000-0000.safetensors";
  for (const Edit& edit : std::vector<Edit>{
           {"\"format_version\": 2", "\"format_version\": 3", "reads 1 to 2"},
           {"\"format_version\": 2", "\"format_version\": 0", "reads 1 to 2"},
           {"\"format_version\": 2,\n", "", "format_version"},
           {"\"step\": 1200", "\"step\": -1", "non-negative"},
           {"\"step\": 1200", "\"step\": 1.0", "integer"},
           {"\"step\": 1200,\n", "", "no 'step'"},
           {"\"step\": 1200", "\"step\": 1200, \"step\": 1200", "twice"},
           {"\"step\": 1200", "\"step\": 1200, \"extra\": 1", "unknown key 'extra'"},
           {"\"epoch\": 1", "\"epoch\": 1, \"epoch\": 1", "twice"},
           {"\"epoch\": 1, ", "", "no 'epoch'"},
           {"\"loss_scale\": 65536.0", "\"loss_scale\": 65536.0, \"loss_scale\": 1.0", "twice"},
           {"\"loss_scale\": 65536.0", "\"loss_scale\": [1]", "digit"},
           {"\"loss_scale\": 65536.0", "\"loss_scale\": 1e999", "range"},
           {"\"" + file + "\": {", "\"../x\": {", "plain file name"},
           {"\"" + file + "\": {", "\"manifest.json\": {", "plain file name"},
           {"\"" + file + "\": {", "\"\": {", "plain file name"},
           {"\"" + file + "\": {", "\"shard-0001-0000.safetensors\": {", "twice"},
           {"\"file\": \"" + file, "\"file\": \"/etc/passwd", "not among the files"},
           {"\"bytes\": 4096", "\"bytes\": 18446744073709551616", "more than"},
           {"\"xxh3_128\": \"", "\"xxh3_128\": \"A", "longer than 32"},
           {"\"xxh3_128\": \"" + to_hex(hash128(std::string_view("b"))), "\"xxh3_128\": \"0123",
            "hexadecimal"},
           {"\"s\": {\"dtype\"", "\"w\\u0000\": {\"dtype\"", "not a tensor name"},
           {"\"dtype\": \"bf16\"", "\"dtype\": \"fp8\"", "unknown dtype"},
           {"\"shape\": [4, 6]", "\"shape\": [4, 7]", "exactly once"},
           {"\"shape\": [4, 6]", "\"shape\": [4, 5]", "has a box at"},
           {"\"shape\": [4, 6]", "\"shape\": [24]", "has a box at"},
           {"\"shape\": [4, 6]", "\"shape\": [4294967296, 4294967296]", "impossible shape"},
           {"\"shape\": [4, 6]", "\"shape\": [1,1,1,1,4,6]", "more than 5"},
           {"\"offset\": [0, 2]", "\"offset\": [0, 1]", "exactly once"},
           {"\"offset\": [0, 2]", "\"offset\": [0, 3]", "has a box at"},
           {"\"offset\": [0, 2]", "\"offset\": [0, 9223372036854775807]", "has a box at"},
           {"\"offset\": [0, 0], \"shape\": [4, 2]", "\"offset\": [0, 0], \"shape\": [4, 6]",
            "once"},
           {"\"name_in_file\": \"w@0,2\"", "\"name_in_file\": \"\"", "bad name"}}) {
    CAPTURE(edit.from);
    CAPTURE(edit.to);
    const std::string message = error_of(edited(edit.from, edit.to));
    CAPTURE(message);
    CHECK(message.find(edit.message) != std::string::npos);
    CHECK(message.find("m.json") != std::string::npos);
  }
}

TEST_CASE("a manifest that could not be read is not written") {
  Manifest manifest = small_manifest();
  manifest.tensors["w"].boxes.pop_back();
  CHECK_THROWS_AS(format_manifest(manifest), CheckpointError);
  manifest = small_manifest();
  manifest.tensors["w"].boxes[1].box = {{0, 0}, {4, 4}};
  CHECK_THROWS_AS(format_manifest(manifest), CheckpointError);
  manifest = small_manifest();
  manifest.run.recipe = "\xff";
  CHECK_THROWS_AS(format_manifest(manifest), CheckpointError);
  manifest = small_manifest();
  manifest.run.state[std::string(257, 'k')] = true;
  CHECK_THROWS_AS(format_manifest(manifest), CheckpointError);
}

}  // namespace llmtrain::checkpoint
