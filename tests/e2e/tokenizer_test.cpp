// The verbs of `llmtrain tokenizer`.
#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain {

namespace {

std::string style(const std::string& name) {
  return (test_file("unit/data/golden/styles") / (name + ".json")).string();
}

void check(const test::ProcessResult& result, int exit_code, std::string_view output) {
  INFO(result.output);
  CHECK(result.exit_code == exit_code);
  CHECK(result.output == output);
}

}  // namespace

TEST_CASE("a trained tokenizer encodes a text whose ids decode to it, byte for byte") {
  const Workspace here(kTinyRecipe);
  CHECK(here.call({"tokenizer", "train", "text.txt", "--output", "tok", "--vocab-size", "300",
                   "--pattern", "o200k"})
            .exit_code == 0);
  const test::ProcessResult ids = here.call({"tokenizer", "encode", "tok", "text.txt", "--json"});
  REQUIRE(ids.exit_code == 0);
  here.write("ids.json", ids.output);
  const std::string text = read_file(here.path / "text.txt");
  check(here.call({"tokenizer", "decode", "tok", "ids.json"}), 0, text);
  const test::ProcessResult lines =
      here.call({"tokenizer", "encode", "tok", "text.txt", "--lines"});
  here.write("ids.txt", lines.output);
  // The last line of the text has no end, and gets one.
  check(here.call({"tokenizer", "decode", "tok", "ids.txt", "--lines"}), 0, text + "\n");
  const test::ProcessResult statistics =
      here.call({"tokenizer", "encode", "tok", "text.txt", "--stats"});
  CHECK(statistics.exit_code == 0);
  CHECK(holds(statistics.output, {"1 texts, ", " bytes per token, ", " MB/s"}));
}

TEST_CASE("a tokenizer that is there is not written over") {
  const Workspace here(kTinyRecipe);
  const auto train = [&](const char* vocab_size) {
    return here.call(
        {"tokenizer", "train", "text.txt", "--output", "tok", "--vocab-size", vocab_size});
  };
  REQUIRE(train("300").exit_code == 0);
  const std::string before = read_file(here.path / "tok" / "tokenizer.json");
  const auto refused = train("290");
  CHECK(refused.exit_code == 2);
  CHECK(holds(refused.output, {"tok/tokenizer.json exists and is left as it is; delete it"}));
  CHECK(read_file(here.path / "tok" / "tokenizer.json") == before);
  std::filesystem::remove(here.path / "tok" / "tokenizer.json");
  CHECK(holds(train("290").output, {"tok/tokenizer_config.json exists"}));
}

TEST_CASE("special tokens stand around a text only when they are asked for") {
  const Workspace here(kTinyRecipe);
  here.write("a.txt", "a");
  const std::string plain = here.call({"tokenizer", "encode", style("llama2"), "a.txt"}).output;
  check(here.call({"tokenizer", "encode", style("llama2"), "a.txt", "--special"}), 0, "1 " + plain);
  check(here.call({"tokenizer", "encode", "bytes", "a.txt", "--special"}), 0, "97\n");
}

TEST_CASE("diff shows the first text whose ids differ, and ends with exit code 1") {
  const Workspace here(kTinyRecipe);
  here.write("texts.txt", "same\nx12345\n");
  const std::string gpt2 = style("gpt2");
  check(here.call({"tokenizer", "diff", gpt2, gpt2, "--generate", "20"}), 0,
        "20 texts: the same ids\n");
  check(here.call({"tokenizer", "diff", gpt2, gpt2, "texts.txt", "--lines"}), 0,
        "2 texts: the same ids\n");
  const test::ProcessResult files =
      here.call({"tokenizer", "diff", "bytes", gpt2, "texts.txt", "--lines"});
  CHECK(files.exit_code == 1);
  CHECK(holds(files.output, {"texts.txt:1: ids differ from number 0 on, near byte 0", "text: same",
                             "bytes: 115 97 109 101 (4 ids)"}));
  const test::ProcessResult generated =
      here.call({"tokenizer", "diff", gpt2, style("o200k"), "--generate", "3", "--seed", "8"});
  CHECK(generated.exit_code == 1);
  CHECK(holds(generated.output, {"generated text of seed 8: ids differ"}));
  // The same vocabulary with other special tokens around a text.
  std::string framed = read_file(style("llama2"));
  const std::string from = R"("SpecialToken":{"id":"<s>")";
  framed.replace(framed.find(from), from.size(), R"("SpecialToken":{"id":"</s>")");
  const std::string tokens = R"("special_tokens":{)";
  framed.insert(framed.find(tokens) + tokens.size(),
                R"("</s>":{"id":"</s>","ids":[2],"tokens":["</s>"]},)");
  here.write("framed.json", framed);
  CHECK(here.call({"tokenizer", "diff", style("llama2"), "framed.json", "--generate", "2"})
            .exit_code == 0);
  CHECK(here.call({"tokenizer", "diff", style("llama2"), "framed.json", "--generate", "2",
                   "--special"})
            .exit_code == 1);
}

TEST_CASE("mistakes at the tokenizer's verbs end with the exit codes of their kind") {
  const Workspace here(kTinyRecipe);
  here.write("bad.json", "{}");
  here.write("ids.txt", "97, x");
  here.write("large.txt", "99999");
  const auto ends = [&](const std::vector<std::string>& arguments, int exit_code,
                        const std::string& part) {
    const test::ProcessResult result = here.call(arguments);
    INFO(result.output);
    CHECK(result.exit_code == exit_code);
    CHECK(holds(result.output, {part}));
  };
  ends({"tokenizer", "encode", "bad.json", "text.txt"}, 4, "bad.json.version");
  ends({"tokenizer", "encode", "bytes", "nowhere.txt"}, 4, "nowhere.txt");
  ends({"tokenizer", "decode", "bytes", "ids.txt"}, 4, "ids.txt, byte 4: 'x' is no token id");
  ends({"tokenizer", "decode", "bytes", "large.txt"}, 4, "99999 is not in the vocabulary");
  ends({"tokenizer", "diff", "bytes", "bytes", "text.txt", "--generate", "1"}, 2, "leave out");
  ends({"tokenizer", "encode", "bytes", "text.txt", "--stats", "--json"}, 2, "excludes");
  ends({"tokenizer", "train", "text.txt", "--output", "t", "--vocab-size", "5"}, 2, "at least 257");
  ends({"tokenizer", "train", "text.txt", "--output", "t", "--pattern", "gpt9"}, 2, "o200k");
  ends({"tokenizer"}, 2, "subcommand");
}

}  // namespace llmtrain
