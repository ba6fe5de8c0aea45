#include "lib/recipe/json_schema.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/recipe/sample.hpp"

namespace llmtrain::recipe {

using namespace sample;
using nlohmann::json;

TEST_CASE("the JSON Schema says of every key what the loader checks") {
  const Root root;

  const json schema = json::parse(json_schema(root, "sample"));

  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["title"] == "sample");
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["patternProperties"]["^x-"] == true);
  CHECK(schema["properties"]["recipe"]["const"] == 1);
  const json& run = schema["properties"]["run"]["properties"];
  CHECK(run["seed"] ==
        json{{"type", "integer"}, {"description", "of everything random"}, {"default", 42}});
  CHECK(run["tags"]["items"]["type"] == "string");
  CHECK(run["tags"]["default"] == json({"a", "b"}));
  CHECK(run["verbose"]["type"] == "boolean");
  const json& model = schema["properties"]["model"]["properties"];
  CHECK(model["norm"]["enum"] == json({"layer_norm", "rms_norm"}));
  CHECK(model["hidden_size"]["minimum"] == 1);
  CHECK_FALSE(model["hidden_size"].contains("default"));
  CHECK(model["init"]["properties"]["std"]["exclusiveMinimum"] == 0);
  const json& training = schema["properties"]["training"]["properties"];
  CHECK(training["seq_len"]["description"] == "tokens of a sample [tokens]");
  CHECK(training["micro_batch_size"]["anyOf"][1]["const"] == "auto");
  CHECK(training["micro_batch_size"]["default"] == "auto");
  CHECK(training["max_tokens"]["anyOf"][1]["type"] == "null");
  CHECK(training["ramp"]["type"] == json({"object", "null"}));
}

TEST_CASE("a choice allows the keys of the selected row only") {
  const Root root;

  const json schema = json::parse(json_schema(root, "sample"));

  const json& optimizer = schema["properties"]["optimizer"];
  CHECK(optimizer["properties"]["name"]["enum"] == json({"adamw", "sgd", "none"}));
  CHECK(optimizer["properties"].contains("betas"));
  CHECK(optimizer["properties"].contains("momentum"));
  REQUIRE(optimizer["allOf"].size() == 3);
  const json& adamw = optimizer["allOf"][0];
  CHECK_FALSE(adamw["if"].contains("required"));  // the default row also holds when name is absent
  CHECK(adamw["then"]["properties"]["betas"]["minItems"] == 2);
  CHECK(adamw["then"]["properties"]["momentum"] == false);
  const json& sgd = optimizer["allOf"][1];
  CHECK(sgd["if"]["required"] == json({"name"}));
  CHECK(sgd["if"]["properties"]["name"]["const"] == "sgd");
  CHECK(sgd["then"]["properties"]["betas"] == false);
  CHECK(optimizer["allOf"][2]["then"]["properties"]["betas"] == false);
}

TEST_CASE("keys are required in list elements only, because includes may give all others") {
  const Root root;

  const json schema = json::parse(json_schema(root, "sample"));

  CHECK_FALSE(schema["properties"]["model"].contains("required"));
  const json& sources = schema["properties"]["data"]["properties"]["sources"];
  CHECK(sources["items"]["required"] == json({"path"}));
  CHECK(sources["items"]["additionalProperties"] == false);
}

}  // namespace llmtrain::recipe
