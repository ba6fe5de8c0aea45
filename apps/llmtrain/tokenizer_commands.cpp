// tokenizer.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <span>

#include <fmt/ranges.h>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/adversarial_text.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/data/inspect.hpp"
#include "lib/data/source.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::app {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{4} << 30;
constexpr std::size_t kShownIds = 32;
constexpr std::size_t kShownBytes = 400;

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

/// A text and where it came from.
struct NamedText {
  std::string name;
  std::string text;
};

void append_lines(const NamedText& whole, std::vector<NamedText>& texts) {
  std::size_t number = 0;
  for (std::size_t at = 0; at < whole.text.size();) {
    const std::size_t end = std::min(whole.text.find('\n', at), whole.text.size());
    texts.push_back({fmt::format("{}:{}", whole.name, ++number), whole.text.substr(at, end - at)});
    at = end + 1;
  }
}

/// The files, or standard input without any; each whole, or line by line.
std::vector<NamedText> read_texts(const std::vector<fs::path>& files, bool lines) {
  std::vector<NamedText> whole;
  for (const fs::path& file : files) {
    whole.push_back({file.string(), read_file(file, kMaxTextBytes)});
  }
  if (files.empty()) {
    whole.push_back({"standard input", std::string(std::istreambuf_iterator<char>(std::cin), {})});
  }
  if (!lines) return whole;
  std::vector<NamedText> texts;
  for (const NamedText& text : whole) append_lines(text, texts);
  return texts;
}

std::shared_ptr<const data::Tokenizer> open(const fs::path& path) {
  if (path == "bytes") return data::make_byte_tokenizer();
  return data::make_tokenizer({.type = "bpe", .path = path});
}

data::SpecialTokens special_tokens(bool framed) {
  return framed ? data::SpecialTokens::framed : data::SpecialTokens::none;
}

/// Ids separated by white space, commas or brackets, so that a JSON array is one way to write them.
std::vector<std::int32_t> parse_ids(const NamedText& text) {
  std::vector<std::int32_t> ids;
  std::string_view rest = text.text;
  constexpr std::string_view separators = " \t\r\n,[]";
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(separators), rest.size()));
    if (rest.empty()) return ids;
    const std::string_view word = rest.substr(0, rest.find_first_of(separators));
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    require<DataError>(error == std::errc{} && end == word.data() + word.size(),
                       "{}, byte {}: '{}' is no token id; write whole numbers between white space "
                       "or as a JSON array",
                       text.name, rest.data() - text.text.data(), word);
    ids.push_back(id);
    rest.remove_prefix(word.size());
  }
}

/// Speed and density of the tokenizer over all texts at once.
void print_statistics(const data::Tokenizer& tokenizer, const std::vector<NamedText>& texts) {
  std::vector<std::string_view> views;
  std::size_t bytes = 0;
  for (const NamedText& text : texts) {
    views.push_back(text.text);
    bytes += text.text.size();
  }
  const auto begin = std::chrono::steady_clock::now();
  std::size_t tokens = 0;
  for (const auto& ids : data::encode_all(tokenizer, views)) tokens += ids.size();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print(fmt::format(
      "{} texts, {} bytes, {} tokens, {:.3f} bytes per token, {:.3f} s, {:.1f} MB/s\n",
      texts.size(), bytes, tokens,
      static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(tokens, 1)), seconds,
      static_cast<double>(bytes) / 1e6 / seconds));
}

/// The ids around the first difference.
std::string excerpt(const std::vector<std::int32_t>& ids, std::size_t difference) {
  const std::size_t begin = difference - std::min(difference, kShownIds / 4);
  const std::size_t end = std::min(ids.size(), begin + kShownIds);
  const std::span<const std::int32_t> shown =
      std::span(ids).subspan(std::min(begin, end), end - std::min(begin, end));
  return fmt::format("{}{}{} ({} ids)", begin > 0 ? "... " : "", fmt::join(shown, " "),
                     end < ids.size() ? " ..." : "", ids.size());
}

bool same_ids(const data::Tokenizer& a, const data::Tokenizer& b, const NamedText& text,
              const TokenizerDifference& arguments) {
  const auto special = special_tokens(arguments.special);
  const std::vector<std::int32_t> left = a.encode(text.text, special);
  const std::vector<std::int32_t> right = b.encode(text.text, special);
  if (left == right) return true;
  const auto difference = static_cast<std::size_t>(
      std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first - left.begin());
  const std::span<const std::int32_t> before = std::span(left).first(difference);
  const std::size_t at = a.decode(before).size();
  const std::size_t begin = at - std::min(at, kShownBytes / 4);
  print(fmt::format(
      "{}: ids differ from number {} on, near byte {}\ntext: {}\n{}: {}\n{}: {}\n", text.name,
      difference, at,
      data::visible_text(text.text.substr(std::min(begin, text.text.size()), kShownBytes)),
      arguments.a.string(), excerpt(left, difference), arguments.b.string(),
      excerpt(right, difference)));
  return false;
}

}  // namespace

ExitCode train_tokenizer(const TokenizerTraining& arguments) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::filesystem::path file = arguments.output / name;
    require<RecipeError>(!std::filesystem::exists(file),
                         "{} exists and is left as it is; delete it, or choose another --output",
                         file.string());
  }
  std::vector<data::SourceOptions> sources;
  for (const auto& file : arguments.files) sources.push_back({.path = file});
  std::vector<std::string> texts;
  for (const data::SourceFile& file : data::list_source_files(sources)) {
    for (data::Document& document :
         data::read_documents(file, 0, file.size_bytes, [](std::string_view) { return true; })) {
      texts.push_back(std::move(document.text));
    }
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto tokenizer =
      data::train_bpe(views, {.vocab_size = static_cast<std::int64_t>(arguments.vocab_size),
                              .pattern = arguments.pattern});
  create_directories_durably(arguments.output);
  data::save_tokenizer(*tokenizer, arguments.output);
  print(fmt::format("{}: {} tokens\n", (arguments.output / "tokenizer.json").string(),
                    tokenizer->vocab_size()));
  return ExitCode::done;
}

ExitCode encode(const TokenizerTexts& arguments) {
  const auto tokenizer = open(arguments.tokenizer);
  const std::vector<NamedText> texts = read_texts(arguments.files, arguments.lines);
  if (arguments.statistics) {
    print_statistics(*tokenizer, texts);
    return ExitCode::done;
  }
  for (const NamedText& text : texts) {
    const auto ids = tokenizer->encode(text.text, special_tokens(arguments.special));
    print(arguments.json ? fmt::format("[{}]\n", fmt::join(ids, ","))
                         : fmt::format("{}\n", fmt::join(ids, " ")));
  }
  return ExitCode::done;
}

ExitCode decode(const TokenizerTexts& arguments) {
  const auto tokenizer = open(arguments.tokenizer);
  for (const NamedText& text : read_texts(arguments.files, arguments.lines)) {
    print(tokenizer->decode(parse_ids(text)));
    if (arguments.lines) print("\n");
  }
  return ExitCode::done;
}

ExitCode diff_tokenizers(const TokenizerDifference& arguments) {
  const auto a = open(arguments.a);
  const auto b = open(arguments.b);
  require<RecipeError>(arguments.files.empty() || !arguments.generated,
                       "--generate makes the texts: leave out the files, or the option");
  std::size_t texts = 0;
  if (arguments.generated) {
    for (std::uint64_t i = 0; i < *arguments.generated; ++i, ++texts) {
      const std::uint64_t seed = arguments.seed + i;
      const NamedText text{fmt::format("generated text of seed {}", seed),
                           data::adversarial_text(seed)};
      if (!same_ids(*a, *b, text, arguments)) return ExitCode::runtime;
    }
  } else {
    for (const NamedText& text : read_texts(arguments.files, arguments.lines)) {
      if (!same_ids(*a, *b, text, arguments)) return ExitCode::runtime;
      ++texts;
    }
  }
  print(fmt::format("{} texts: the same ids\n", texts));
  return ExitCode::done;
}

}  // namespace llmtrain::app
