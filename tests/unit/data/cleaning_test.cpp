#include "lib/data/cleaning.hpp"

#include <omp.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/data/prepare.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr HeldOutRule kRule{.modulus = 4, .remainder = 0};

// Words of a language of its own for each seed; `changed` of them are others.
std::string prose(std::uint64_t seed, int count, int changed = 0) {
  SplitMix64 random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t word = random() % 100000;
    text += i < changed ? "other" : "w";
    text += std::to_string(word) + (i % 10 == 9 ? "\n" : " ");
  }
  return text;
}

// A directory of documents, and names that the rule holds out or does not.
class Texts {
 public:
  std::string training(const std::string& text) { return add(text, false); }
  std::string held_out(const std::string& text) { return add(text, true); }
  void write(const std::string& name, const std::string& text) const {
    directory_.write("src/" + name, text);
  }
  std::vector<SourceFile> files() const {
    const SourceOptions source{.path = directory_.path() / "src"};
    return list_source_files(std::span(&source, 1));
  }
  fs::path out(std::string_view name = "cleaning") const { return directory_.path() / name; }

 private:
  // Names ascend, so that documents come in the order in which they were added.
  std::string add(const std::string& text, bool held_out) {
    std::string name;
    do {
      name = fmt::format("d{:05}.txt", next_++);
    } while (is_held_out(name, kRule) != held_out);
    write(name, text);
    return name;
  }
  TemporaryDirectory directory_;
  int next_ = 0;
};

CleaningRequest request(CleaningOptions options) {
  return {.options = std::move(options), .held_out = kRule, .shard_source_bytes = 3000};
}

CleaningOptions all_duplicates() { return {.exact = true, .near = NearDuplicateOptions{}}; }

// "reason: document, document = partner; ..." in the order of the list.
std::string dropped_in(const fs::path& directory) {
  const std::string text = read_file(directory / kDroppedName);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const auto d = DroppedDocument::from_json_line(text.substr(at, end - at), "list");
    out += fmt::format("{} {}{}\n", d.reason, d.document, d.partner.empty() ? "" : " " + d.partner);
    at = end + 1;
  }
  return out;
}

std::string clean(const Texts& texts, const CleaningOptions& options,
                  std::string_view out = "cleaning") {
  open_or_clean(texts.files(), request(options), texts.out(out));
  return dropped_in(texts.out(out));
}

}  // namespace

TEST_CASE("the first of equal and of similar training documents stays") {
  Texts texts;
  const auto first = texts.training(prose(1, 300));
  const auto other = texts.training(prose(2, 300));
  const auto copy = texts.training(prose(1, 300));
  const auto similar = texts.training(prose(1, 300, 5));
  const auto copy_of_similar = texts.training(prose(1, 300, 5));
  CHECK(clean(texts, all_duplicates()) ==
        fmt::format("exact_duplicate {1} {0}\nnear_duplicate {2} {0}\nnear_duplicate {3} {0}\n",
                    first, copy, similar, copy_of_similar));
  CHECK(clean(texts, {.exact = true}, "exact") ==
        fmt::format("exact_duplicate {} {}\nexact_duplicate {} {}\n", copy, first, copy_of_similar,
                    similar));
  CHECK(clean(texts, {.near = NearDuplicateOptions{}}, "near") ==
        fmt::format("near_duplicate {1} {0}\nnear_duplicate {2} {0}\nnear_duplicate {3} {0}\n",
                    first, copy, similar, copy_of_similar));
}

TEST_CASE("a training document that duplicates a held-out one is dropped, wherever it stands") {
  Texts texts;
  const auto before = texts.training(prose(1, 300));
  const auto similar_before = texts.training(prose(2, 300, 4));
  const auto held_out = texts.held_out(prose(1, 300));
  const auto other_held_out = texts.held_out(prose(2, 300));
  const auto after = texts.training(prose(1, 300));
  texts.held_out(prose(1, 300));  // duplicates among the held-out ones are counted
  texts.held_out(prose(2, 300, 3));
  CHECK(clean(texts, all_duplicates()) ==
        fmt::format("exact_duplicate_of_held_out {0} {3}\nnear_duplicate_of_held_out {1} {4}\n"
                    "exact_duplicate_of_held_out {2} {3}\n",
                    before, similar_before, after, held_out, other_held_out));
  const auto cleaning = open_or_clean(texts.files(), request(all_duplicates()), texts.out());
  CHECK(cleaning->report().documents == 3);
  CHECK(cleaning->report().dropped_documents() == 3);
  CHECK(cleaning->report().held_out_documents == 4);
  CHECK(cleaning->report().held_out_exact_duplicates == 1);
  CHECK(cleaning->report().held_out_near_duplicates == 1);
}

TEST_CASE("a chain of small changes does not drop a document that resembles none that stays") {
  Texts texts;
  // Jaccard similarity with the one before: 0.89 and 0.81; of the last with the first: 0.72.
  const auto first = texts.training(prose(1, 1000));
  const auto second = texts.training(prose(1, 1000, 60));
  texts.training(prose(1, 1000, 160));
  CHECK(clean(texts, {.near = NearDuplicateOptions{.permutations = 512}}) ==
        fmt::format("near_duplicate {} {}\n", second, first));
}

TEST_CASE("normalised texts are equal without case and amount of white space") {
  Texts texts;
  const auto first = texts.training("One two\n\nthree");
  const auto second = texts.training("  one TWO three \n");
  texts.training("one two three!");
  CHECK(clean(texts, {.exact = true}, "plain") == "");
  CHECK(clean(texts, {.exact = true, .normalize = true}) ==
        fmt::format("exact_duplicate {} {}\n", second, first));
}

TEST_CASE("filters drop training documents before duplicates are looked for, never held-out ones") {
  Texts texts;
  const auto thin = texts.training("few words");
  const auto held_out = texts.held_out("few words");
  texts.training(prose(1, 50));
  texts.training("");  // without text it goes into no set anyway, and is not counted
  CleaningOptions options = all_duplicates();
  const auto table = text_filter_table();
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (table[row].name == "min_words") options.filters.push_back({row, 3});
  }
  CHECK(clean(texts, options) == fmt::format("min_words {}\n", thin));
  const auto cleaning = open_or_clean(texts.files(), request(options), texts.out());
  CHECK(cleaning->report().documents == 2);
  CHECK(cleaning->report().dropped[0].examples[0].value == 2);
  const std::string summary = cleaning->report().summary();
  CHECK(contains(summary, "cleaning: 1 of 2 training documents stay"));
  CHECK(contains(summary, fmt::format("{} (2)", thin)));
}

TEST_CASE("token sets hold what stays, and are made again when cleaning changes") {
  Texts texts;
  texts.write("lines.jsonl", "{\"text\":\"same\"}\n{\"text\":\"same\"}\n{\"text\":\"else\"}\n");
  const auto keep = texts.training(prose(1, 100));
  const auto drop = texts.training(prose(1, 100));
  const auto tokenizer = make_byte_tokenizer();
  PrepareOptions options{.part = Part::training, .held_out = kRule};
  const auto names = [&] {
    const TokenSet set = open_or_prepare(texts.files(), *tokenizer, options, texts.out("set"));
    std::string all;
    for (std::uint64_t d = 0; d < set.document_count(); ++d) all += set.document_name(d) + " ";
    return all;
  };
  CHECK(contains(names(), drop));
  options.cleaning = open_or_clean(texts.files(), request(all_duplicates()), texts.out());
  CHECK(contains(names(), keep));
  CHECK(!contains(names(), drop));
  const bool first_line = contains(names(), "lines.jsonl@0 ");
  const bool second_line = contains(names(), "lines.jsonl@16 ");
  CHECK(!(first_line && second_line));
  options.cleaning = nullptr;
  CHECK(contains(names(), drop));
}

TEST_CASE("cleaning that leaves nothing is refused with its reasons") {
  Texts texts;
  texts.held_out(prose(1, 100));
  texts.training(prose(1, 100));
  const PrepareOptions options{
      .part = Part::training,
      .held_out = kRule,
      .cleaning = open_or_clean(texts.files(), request(all_duplicates()), texts.out())};
  const std::string refusal = message_of<DataError>(
      [&] { prepare(texts.files(), *make_byte_tokenizer(), options, texts.out("set")); });
  CHECK(contains(refusal, "data.cleaning leaves no document to train on"));
  CHECK(contains(refusal, "exact_duplicate_of_held_out 1"));
}

TEST_CASE("decisions do not depend on threads or shards, and go on after damage") {
  Texts texts;
  for (std::uint64_t i = 0; i < 60; ++i) {
    texts.training(prose(i % 20, 80, static_cast<int>(i / 20)));
  }
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::string expected = clean(texts, all_duplicates(), "1");
  omp_set_num_threads(4);
  CHECK(clean(texts, all_duplicates(), "4") == expected);
  omp_set_num_threads(threads);
  CHECK(std::count(expected.begin(), expected.end(), '\n') == 40);
  CleaningRequest whole = request(all_duplicates());
  whole.shard_source_bytes = std::uint64_t{1} << 30;
  open_or_clean(texts.files(), whole, texts.out("whole"));
  CHECK(dropped_in(texts.out("whole")) == expected);

  // A finished shard is kept, a damaged one is made again, and so is a damaged list.
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const fs::path kept = texts.out("1") / "signatures-00001.bin";
  const fs::path damaged = texts.out("1") / "signatures-00000.bin";
  fs::last_write_time(kept, old);
  for (const std::string_view how : {"cut", "flipped", "longer", "empty"}) {
    CAPTURE(how);
    std::string bytes = read_file(damaged);
    if (how == "cut") bytes.resize(bytes.size() - 1);
    if (how == "flipped") bytes[100] = static_cast<char>(bytes[100] ^ 1);
    if (how == "longer") bytes += "x";
    if (how == "empty") bytes.clear();
    write_file_atomic(damaged, bytes);
    write_file_atomic(texts.out("1") / kDroppedName, expected);
    CHECK(clean(texts, all_duplicates(), "1") == expected);
    CHECK(fs::last_write_time(kept) == old);
  }
}

TEST_CASE("decisions are used again until files, split or options change") {
  Texts texts;
  texts.training(prose(1, 50));
  const std::string name = texts.training(prose(2, 50));
  CleaningRequest now = request(all_duplicates());
  const fs::path report = texts.out() / kCleaningReportName;
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const auto again = [&] {
    if (fs::exists(report)) fs::last_write_time(report, old);
    open_or_clean(texts.files(), now, texts.out());
    return fs::last_write_time(report) != old;
  };
  CHECK(again());
  CHECK(!again());
  texts.write(name, prose(3, 50));
  CHECK(again());
  CHECK(!again());
  now.held_out.remainder = 1;
  CHECK(again());
  now.options.exact = false;
  CHECK(again());
  now.options.near->threshold = 0.7;
  CHECK(again());
  now.options.near->permutations = 64;
  CHECK(again());
  now.options.near->shingles.size = 4;
  CHECK(again());
  now.options.near->shingles.unit = ShingleUnit::characters;
  CHECK(again());
  now.options.filters.push_back({0, 10});
  CHECK(again());
  now.options.filters[0].threshold = 11;
  CHECK(again());
  CHECK(!again());
}

TEST_CASE("a report survives writing and reading, and others are refused") {
  CleaningReport report{.documents = 7, .bytes = 700, .held_out_documents = 2};
  report.dropped = {{.reason = "min_words"}, {.reason = "near_duplicate"}};
  report.add({"a.txt", 0, 0, 10, "min_words", 2, ""});
  for (int i = 0; i < 4; ++i) report.add({"b.txt", 1, 5, 20, "near_duplicate", 0.9, "c@7"});
  const std::string text = report.to_json("key", {1, 2});
  const auto parsed = CleaningReport::from_json(text, "report");
  CHECK(parsed.report.to_json(parsed.key, {1, 2}) == text);
  CHECK(parsed.list_hash == to_hex({1, 2}));
  CHECK(parsed.report.summary() == report.summary());
  CHECK(report.dropped[1].examples.size() == 3);
  CHECK(report.dropped_bytes() == 90);
  CHECK(contains(report.summary(), "2 of 7 training documents stay, 610 B of 700 B"));
  CHECK(contains(report.summary(), "b.txt ~ (0.90) c@7"));
  CHECK(report.reasons() == "min_words 1, near_duplicate 4");
  for (const char* bad : {"", "[]", "{}", "{\"format\":\"llmtrain-cleaning\",\"version\":2}"}) {
    CHECK(contains(message_of<DataError>([&] { CleaningReport::from_json(bad, "report"); }),
                   "report"));
  }
  for (const char* bad : {"", "{}", "[1]", "{\"document\":1}"}) {
    CHECK(contains(message_of<DataError>([&] { DroppedDocument::from_json_line(bad, "list"); }),
                   "list"));
  }
}

}  // namespace llmtrain::data
