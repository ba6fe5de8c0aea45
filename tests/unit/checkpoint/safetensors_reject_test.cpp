// What the safetensors reader refuses: the fourteen rows of its reject table, one case each, and
// what else the format's text forbids.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/safetensors.hpp"
#include "tests/unit/checkpoint/safetensors_bytes.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

const std::string kGood = one_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])");

struct BadFile {
  std::string what;
  std::string bytes;
  std::string message;  // must occur in the error
};

/// Each file is refused for the reason that its message names, in a line that names the file.
void check_refused(const std::vector<BadFile>& files) {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "bad.safetensors";
  for (const BadFile& bad : files) {
    CAPTURE(bad.what);
    spill(path, bad.bytes);
    std::string message;
    try {
      SafetensorsFile::open(path);
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find(bad.message) != std::string::npos);
    CHECK(message.find("bad.safetensors") != std::string::npos);
    CHECK(message.size() < 600);
  }
}

std::string with_shape(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return one_tensor(
      fmt::format(R"("dtype":"{}","shape":{},"data_offsets":{})", dtype, shape, offsets));
}

/// Tensors "a" and "b" of so many bytes, at these offsets.
std::string two_tensors(int a, const std::string& a_at, int b, const std::string& b_at) {
  return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":{}}},)"
                     R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":{}}}}})",
                     a, a_at, b, b_at);
}

}  // namespace

TEST_CASE("reject table 1: a header length to which nothing can be added") {
  check_refused({{"length + 8 wraps", u64(~0ull) + kGood, "claims 18446744073709551615"},
                 {"length + 5 wraps", u64(~0ull - 4) + kGood, "claims"}});
}

TEST_CASE("reject table 2: a header that is longer than the file, or than the limit") {
  check_refused({{"beyond the file", u64(kGood.size() + 100) + kGood, "has only"},
                 {"one byte beyond the file", u64(kGood.size() + 5) + kGood + "dddd", "has only"},
                 {"above the limit", u64(100'000'001) + kGood, "at most 100000000"},
                 {"no bytes", "", "too few"},
                 {"seven bytes", std::string(7, '\0'), "too few"}});
}

TEST_CASE("reject table 3: a shape whose product wraps to zero elements") {
  check_refused(
      {{"2^62 x 4", file_of(with_shape("F32", "[4611686018427387904,4]", "[0,0]"), 0),
        "does not fill"},
       {"overflow behind a zero",
        file_of(with_shape("U8", "[4294967296,4294967296,0]", "[0,0]"), 0), "does not fill"}});
}

TEST_CASE("reject table 4: a shape whose product wraps around 64 bits") {
  check_refused(
      {{"2^32 x 2^32", file_of(with_shape("U8", "[4294967296,4294967296]", "[0,0]"), 0),
        "does not fill"},
       {"2^62 of eight bytes", file_of(with_shape("F64", "[4611686018427387904]", "[0,0]"), 0),
        "does not fill"}});
}

TEST_CASE("reject table 5: dims and offsets that are no integers from 0 to 2^63 - 1") {
  std::vector<BadFile> bad;
  for (const std::string number :
       {"-4", "4.0", "4e0", "4.5", "1e3", "9223372036854775808", "\"4\"", "04", "+4", "true",
        "null", "18446744073709551620", "0x4", "NaN"}) {
    const bool is_readable = number == "9223372036854775808";
    bad.push_back(
        {"dim " + number, file_of(with_shape("U8", "[" + number + "]", "[0,4]"), 4), "byte"});
    bad.push_back({"offset " + number, file_of(with_shape("U8", "[4]", "[0," + number + "]"), 4),
                   is_readable ? "more than" : "byte"});
  }
  check_refused(bad);
}

TEST_CASE("reject table 6: a shape that takes fewer or more bytes than the offsets span") {
  check_refused({{"too few", file_of(with_shape("F32", "[2]", "[0,4]"), 4), "does not fill"},
                 {"too many", file_of(with_shape("F32", "[1]", "[0,8]"), 8), "does not fill"}});
}

TEST_CASE("reject table 7: offsets that agree with the shape and end beyond the file") {
  check_refused(
      {{"four bytes", file_of(with_shape("U8", "[8]", "[0,8]"), 4), "but the file has"},
       {"2^50 bytes", file_of(with_shape("U8", "[1125899906842624]", "[0,1125899906842624]"), 4),
        "but the file has"}});
}

TEST_CASE("reject table 8: other than two offsets, or an end before the begin") {
  std::vector<BadFile> bad;
  for (const std::string offsets : {"[]", "[0]", "[0,4,4]", "[4,0]", "{}", "\"04\"", "0"}) {
    bad.push_back({"offsets " + offsets, file_of(with_shape("U8", "[4]", offsets), 4), "byte"});
  }
  check_refused(bad);
}

TEST_CASE("reject table 9: a type that this reader does not know") {
  check_refused({{"unknown", file_of(with_shape("F8_E4M3", "[4]", "[0,4]"), 4), "F8_E4M3"},
                 {"unknown, without a byte", file_of(with_shape("F4", "[0]", "[0,0]"), 0), "F4"},
                 {"in lower case", file_of(with_shape("f32", "[1]", "[0,4]"), 4), "dtype"}});
}

TEST_CASE("reject table 10: tensors that overlap, holes between them, and bytes behind them") {
  check_refused(
      {{"overlap", file_of(two_tensors(4, "[0,4]", 4, "[2,6]"), 6), "starts at data byte 2"},
       {"same bytes twice", file_of(two_tensors(4, "[0,4]", 4, "[0,4]"), 4),
        "starts at data byte 0"},
       {"hole", file_of(two_tensors(2, "[0,2]", 2, "[4,6]"), 6), "starts at data byte 4"},
       {"hole at the start", file_of(with_shape("U8", "[2]", "[2,4]"), 4), "starts at"},
       {"trailing bytes", file_of(kGood, 5), "trailing"},
       {"trailing bytes without tensors", file_of("{}", 1), "trailing"}});
}

TEST_CASE("reject table 11: more tensors than the limit, before they are kept") {
  std::string header = "{";
  for (std::size_t i = 0; i <= kMaxTensorsPerFile; ++i) {
    if (i > 0) header += ',';
    header += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  header += '}';
  CHECK_THROWS_AS(parse_safetensors_header(header, 0, "test"), CheckpointError);
}

TEST_CASE("reject table 12: JSON that is deep, huge, doubled, of bad bytes or of other types") {
  const auto empty_tensor = [](const std::string& name) {
    return "{\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  };
  check_refused(
      {{"deep nesting", file_of("{\"t\":" + std::string(100'000, '['), 0), "expected"},
       {"deep objects", file_of("{\"t\":{\"shape\":" + std::string(100'000, '{'), 0), "expected"},
       {"huge name", file_of("{\"" + std::string(1'000'000, 'n') + "\":{}}", 0), "longer than 256"},
       {"invalid UTF-8", file_of("{\"\xff\":{}}", 0), "UTF-8"},
       {"escaped NUL in a name", file_of(empty_tensor(R"(a\u0000b)"), 0), "tensor name"},
       {"control character in a name", file_of(empty_tensor(R"(a\u001b[2J)"), 0), "tensor name"},
       {"raw NUL in the header", file_of(std::string("{\"a\0\":{}}", 10), 0), "control"},
       {"empty name", file_of(empty_tensor(""), 0), "name"},
       {"duplicate tensor",
        file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                4),
        "twice"},
       {"duplicate empty tensor",
        file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                0),
        "twice"},
       {"duplicate escaped differently",
        file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("\u0061":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                4),
        "twice"},
       {"duplicate key in an entry",
        file_of(one_tensor(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"), 4),
        "twice"},
       {"duplicate metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice"},
       {"duplicate metadata key", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "twice"},
       {"metadata not a string", file_of(R"({"__metadata__":{"a":1}})", 0), "expected"},
       {"metadata nested", file_of(R"({"__metadata__":{"a":{"b":"c"}}})", 0), "expected"},
       {"metadata null", file_of(R"({"__metadata__":null})", 0), "expected"}});
}

TEST_CASE("reject table 13: a name is a name: no path, and no format of a message") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "named.safetensors";
  for (const std::string name :
       {"../../escape", "/etc/passwd", "%n%s%d", "{}{0}{:>99999}", "CON"}) {
    CAPTURE(name);
    const std::string tensor = "\"" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,)";
    spill(path, file_of("{" + tensor + "4]}}", 4));
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::vector<std::byte> bytes(4);
    file.read_tensor(name, bytes);
    CHECK(bytes[3] == std::byte{'d'});
    CHECK(message_of([&] { file.entry(name + "x"); }).find(name + "x") != std::string::npos);
    spill(path, file_of("{" + tensor + "3]}}", 3));  // too few
    CHECK(message_of([&] { SafetensorsFile::open(path); }).find(name) != std::string::npos);
    CHECK(names_in(dir.path()) == std::set<std::string>{"named.safetensors"});
  }
}

TEST_CASE("reject table 14: a file that shrinks after it was opened is an error of the read") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "shrinks.safetensors";
  spill(path, file_of(with_shape("U8", "[100000]", "[0,100000]"), 100'000));
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<std::byte> bytes(100'000);
  file.read_tensor("t", bytes);
  std::filesystem::resize_file(path, 4096);
  CHECK_THROWS_AS(file.read_tensor("t", bytes), DataError);
}

TEST_CASE("what the format's text forbids beyond the reject table is refused with its reason") {
  check_refused(
      {{"key missing", file_of(one_tensor(R"("dtype":"U8","shape":[4])"), 4), "data_offsets"},
       {"shape missing", file_of(one_tensor(R"("dtype":"U8","data_offsets":[0,4])"), 4), "shape"},
       {"dtype missing", file_of(one_tensor(R"("shape":[4],"data_offsets":[0,4])"), 4), "dtype"},
       {"unknown key",
        file_of(one_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)"), 4),
        "unknown"},
       {"six dims", file_of(with_shape("U8", "[1,1,1,1,1,4]", "[0,4]"), 4), "5"},
       {"nested shape", file_of(with_shape("U8", "[[4]]", "[0,4]"), 4), "integer"},
       {"does not start with a brace", file_of(" " + kGood, 4), "does not start"},
       {"empty header", u64(0), "does not start"},
       {"array header", file_of("[]", 0), "does not start"},
       {"text after the header", file_of(kGood + "x", 4), "after the end"},
       {"second document", file_of(kGood + "{}", 4), "after the end"},
       {"NUL padding", file_of(kGood + std::string(1, '\0'), 4), "after the end"},
       {"unfinished header", file_of(kGood.substr(0, kGood.size() - 1), 4), "end"},
       {"comment", file_of("{/**/}", 0), "expected"},
       {"single quotes", file_of("{'t':{}}", 0), "expected"},
       {"entry is null", file_of("{\"t\":null}", 0), "expected"}});
}

}  // namespace llmtrain::checkpoint
