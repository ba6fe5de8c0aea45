#include "lib/plan/hardware_profile.hpp"

#include <functional>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/plan/synthetic_profile.hpp"

namespace llmtrain::plan {

namespace {

using Json = nlohmann::ordered_json;

std::string message_for(const std::function<void(Json&)>& damage) {
  Json json = Json::parse(to_json(synthetic_profile()));
  damage(json);
  try {
    parse_profile(json.dump(), "p.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

bool refuses(const std::function<void(Json&)>& damage, std::string_view what) {
  const std::string message = message_for(damage);
  CAPTURE(message);
  const bool named =
      message.find("p.json") != std::string::npos && message.find(what) != std::string::npos;
  CHECK(named);
  return named;
}

}  // namespace

TEST_CASE("a profile survives its JSON") {
  const std::string json = to_json(synthetic_profile());
  const HardwareProfile profile = parse_profile(json, "p.json");
  CHECK(to_json(profile) == json);
  CHECK(profile.machine.cpu == "a \"processor\"");
  CHECK(profile.threads == 2);
  CHECK(profile.kernels.size() == 2);
  CHECK(profile.kernels.at({"add", DType::f32, 0}).predict({{1e6}, 1e6}) == test::relative(1e-4));
}

TEST_CASE("collectives of several ranks survive the JSON, and faults in them are named") {
  HardwareProfile of_two = synthetic_profile();
  of_two.ranks = 2;
  of_two.collectives.emplace(Collective::all_reduce, KernelModel({{1e3, 1e6}}, {1e3, 1e6}, {1, 2}));
  const std::string text = to_json(of_two);
  const HardwareProfile read = parse_profile(text, "p.json");
  CHECK(to_json(read) == text);
  CHECK(read.ranks == 2);
  CHECK(read.collectives.at(Collective::all_reduce).predict({{1e6}, 1e6}) == test::relative(2));
  const auto refused = [&](const std::function<void(Json&)>& damage) {
    Json json = Json::parse(text);
    damage(json);
    try {
      parse_profile(json.dump(), "p.json");
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refused([](Json& json) { json["collectives"][0]["name"] = "gossip"; }) ==
        "p.json: collectives[0].name is gossip, no collective");
  CHECK(refused([](Json& json) {
          json["collectives"][0].erase("seconds");
        }).find("collectives[0].seconds is missing") != std::string::npos);
  CHECK(refused([](Json& json) { json["collectives"] = 5; }) ==
        "p.json: profile.collectives is not a list");
  CHECK(refused([](Json& json) { json["ranks"] = 0; }) == "p.json: profile.ranks is 0");
}

TEST_CASE("what an older program knew of the machine is passed over") {
  Json json = Json::parse(to_json(synthetic_profile()));
  json["machine"]["onednn_version"] = "2.6.3";
  CHECK(to_json(parse_profile(json.dump(), "p.json")) == to_json(synthetic_profile()));
}

TEST_CASE("bad syntax is refused with its position") {
  CHECK_THROWS_WITH_AS(parse_profile("{\"format\": }", "p.json"), doctest::Contains("column 12"),
                       DataError);
  CHECK_THROWS_AS(parse_profile("", "p.json"), DataError);
  CHECK_THROWS_AS(parse_profile("[1]", "p.json"), DataError);
  CHECK_THROWS_AS(parse_profile("{\"format\": 1} x", "p.json"), DataError);
}

TEST_CASE("a profile with a fault is refused and the field named") {
  CHECK(refuses([](Json& j) { j["format"] = 2; }, "format is 2"));
  CHECK(refuses([](Json& j) { j.erase("threads"); }, "profile.threads is missing"));
  CHECK(refuses([](Json& j) { j["threads"] = "two"; }, "profile.threads"));
  CHECK(refuses([](Json& j) { j["threads"] = -1; }, "profile.threads"));
  CHECK(refuses([](Json& j) { j["peak_fp32_flops"] = 0; }, "peak_fp32_flops is 0"));
  CHECK(refuses([](Json& j) { j["machine"]["cpu"] = 1; }, "machine.cpu"));
  CHECK(refuses([](Json& j) { j["machine"] = 1; }, "machine is not an object"));
  CHECK(refuses([](Json& j) { j["kernels"] = 1; }, "profile.kernels"));
  CHECK(refuses([](Json& j) { j["kernels"][1]["dtype"] = "fp31"; }, "kernels[1].dtype is fp31"));
  CHECK(refuses([](Json& j) { j["kernels"][0]["axes"][0] = "x"; }, "kernels[0].axes"));
  CHECK(refuses([](Json& j) { j["kernels"][0]["axes"].push_back(Json::array({1})); },
                "kernels[0].axes has 2 lists"));
  CHECK(refuses([](Json& j) { j["kernels"][1]["seconds"].push_back(1); }, "kernels[1]"));
  CHECK(refuses([](Json& j) { j["kernels"][1]["seconds"][2] = nullptr; }, "kernels[1].seconds"));
  CHECK(refuses([](Json& j) { j["kernels"].push_back(j["kernels"][0]); }, "there twice"));
}

TEST_CASE("the default profile lies in the user's cache, named by host") {
  const char* old = std::getenv("XDG_CACHE_HOME");
  const std::string saved = old != nullptr ? old : "";
  ::setenv("XDG_CACHE_HOME", "/some/where", 1);
  const std::filesystem::path path = default_profile_path(1);
  CHECK(path.parent_path() == "/some/where/llmtrain");
  CHECK(path.filename().string().starts_with("profile-"));
  CHECK_FALSE(load_default_profile(1).has_value());
  old != nullptr ? ::setenv("XDG_CACHE_HOME", saved.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace llmtrain::plan
