#include "lib/checkpoint/safetensors.hpp"

#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

std::string u64(std::uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return u64(header.size()) + header + std::string(data_bytes, 'd');
}

std::string one_tensor(const std::string& body) { return "{\"t\":{" + body + "}}"; }

struct BadFile {
  std::string what;
  std::string bytes;
  std::string message;  // must occur in the error
};

/// The rows of the reject table in order, then what the format's text forbids.
std::vector<BadFile> reject_table() {
  const std::string two_to_32 = "4294967296";
  const std::string good = one_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])");
  std::vector<BadFile> bad{
      {"length + 8 wraps", u64(~0ull) + good, "claims 18446744073709551615"},
      {"length + 5 wraps", u64(~0ull - 4) + good, "claims"},
      {"length above the limit", u64(100'000'001) + good, "at most 100000000"},
      {"length beyond the file", u64(good.size() + 100) + good, "has only"},
      {"shape product wraps to 0",
       file_of(one_tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
               0),
       "does not fill"},
      {"2^32 x 2^32",
       file_of(one_tensor("\"dtype\":\"U8\",\"shape\":[" + two_to_32 + "," + two_to_32 +
                          "],\"data_offsets\":[0,0]"),
               0),
       "does not fill"},
      {"overflow behind a zero",
       file_of(one_tensor("\"dtype\":\"U8\",\"shape\":[" + two_to_32 + "," + two_to_32 +
                          ",0],\"data_offsets\":[0,0]"),
               0),
       "does not fill"},
      {"bytes too few for the shape",
       file_of(one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
       "does not fill"},
      {"bytes too many for the shape",
       file_of(one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), 8),
       "does not fill"},
      {"beyond the end", file_of(one_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])"), 4),
       "but the file has"},
      {"unknown dtype",
       file_of(one_tensor(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4), "F8_E4M3"},
      {"dtype in lower case",
       file_of(one_tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4), "dtype"},
      {"overlap",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
               6),
       "starts at data byte 2"},
      {"same bytes twice",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
               4),
       "starts at data byte 0"},
      {"hole",
       file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
               6),
       "starts at data byte 4"},
      {"hole at the start",
       file_of(one_tensor(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])"), 4), "starts at"},
      {"trailing bytes", file_of(good, 5), "trailing"},
      {"trailing bytes without tensors", file_of("{}", 1), "trailing"},
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
      {"metadata null", file_of(R"({"__metadata__":null})", 0), "expected"},
      {"key missing", file_of(one_tensor(R"("dtype":"U8","shape":[4])"), 4), "data_offsets"},
      {"shape missing", file_of(one_tensor(R"("dtype":"U8","data_offsets":[0,4])"), 4), "shape"},
      {"dtype missing", file_of(one_tensor(R"("shape":[4],"data_offsets":[0,4])"), 4), "dtype"},
      {"unknown key",
       file_of(one_tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)"), 4), "unknown"},
      {"six dims",
       file_of(one_tensor(R"("dtype":"U8","shape":[1,1,1,1,1,4],"data_offsets":[0,4])"), 4), "5"},
      {"nested shape", file_of(one_tensor(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), 4),
       "integer"},
      {"deep nesting", file_of("{\"t\":" + std::string(100'000, '['), 0), "expected"},
      {"deep objects", file_of("{\"t\":{\"shape\":" + std::string(100'000, '{'), 0), "expected"},
      {"huge name", file_of("{\"" + std::string(1'000'000, 'n') + "\":{}}", 0), "longer than 256"},
      {"invalid UTF-8", file_of("{\"\xff\":{}}", 0), "UTF-8"},
      {"escaped NUL in a name",
       file_of(R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "tensor name"},
      {"control character in a name",
       file_of(R"({"a\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "tensor name"},
      {"raw NUL in the header", file_of(std::string("{\"a\0\":{}}", 10), 0), "control"},
      {"empty name", file_of(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0), "name"},
      {"does not start with a brace", file_of(" " + good, 4), "does not start"},
      {"empty header", u64(0), "does not start"},
      {"array header", file_of("[]", 0), "does not start"},
      {"text after the header", file_of(good + "x", 4), "after the end"},
      {"second document", file_of(good + "{}", 4), "after the end"},
      {"NUL padding", file_of(good + std::string(1, '\0'), 4), "after the end"},
      {"unfinished header", file_of(good.substr(0, good.size() - 1), 4), "end"},
      {"comment", file_of("{/**/}", 0), "expected"},
      {"single quotes", file_of("{'t':{}}", 0), "expected"},
      {"entry is null", file_of("{\"t\":null}", 0), "expected"},
      {"no bytes", "", "too few"},
      {"seven bytes", std::string(7, '\0'), "too few"}};
  for (const std::string dim : {"-4", "4.0", "4e0", "4.5", "1e3", "9223372036854775808", "\"4\"",
                                "04", "+4", "true", "null", "18446744073709551620", "0x4", "NaN"}) {
    bad.push_back(
        {"dim " + dim,
         file_of(one_tensor("\"dtype\":\"U8\",\"shape\":[" + dim + "],\"data_offsets\":[0,4]"), 4),
         "byte"});
    bad.push_back(
        {"offset " + dim,
         file_of(one_tensor("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0," + dim + "]"), 4),
         dim == "9223372036854775808" ? "more than" : "byte"});
  }
  for (const char* offsets : {"[]", "[0]", "[0,4,4]", "[4,0]", "{}", "\"04\"", "0"}) {
    bad.push_back(
        {std::string("offsets ") + offsets,
         file_of(
             one_tensor(std::string("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":") + offsets),
             4),
         "byte"});
  }
  return bad;
}

}  // namespace

TEST_CASE("every row of the reject table is refused with its reason") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "bad.safetensors";
  for (const BadFile& bad : reject_table()) {
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

TEST_CASE("more tensors than the limit are refused before they are kept") {
  std::string header = "{";
  for (std::size_t i = 0; i <= kMaxTensorsPerFile; ++i) {
    if (i > 0) header += ',';
    header += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  header += '}';
  CHECK_THROWS_AS(parse_safetensors_header(header, 0, "test"), CheckpointError);
}

TEST_CASE("a name is a name: no path, and no format of a message") {
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

TEST_CASE("a file that shrinks after it was opened is an error of the read, not the end") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "shrinks.safetensors";
  spill(path,
        file_of(one_tensor(R"("dtype":"U8","shape":[100000],"data_offsets":[0,100000])"), 100'000));
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<std::byte> bytes(100'000);
  file.read_tensor("t", bytes);
  std::filesystem::resize_file(path, 4096);
  CHECK_THROWS_AS(file.read_tensor("t", bytes), DataError);
}

TEST_CASE("what the format allows is read: empty, scalar, padded, unsorted, without metadata") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "good.safetensors";
  spill(path, file_of(R"({"b":{"data_offsets":[4,12],"shape":[],"dtype":"F64"},)"
                      R"( "e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                      R"("a":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}   )",
                      12));
  const SafetensorsFile file = SafetensorsFile::open(path);
  REQUIRE(file.entries().size() == 3);
  CHECK(file.entries()[0].name == "a");
  CHECK(file.entry("b").shape.empty());
  CHECK(file.entry("b").bytes == 8);
  CHECK(file.entry("e").bytes == 0);
  CHECK(file.find("c") == nullptr);
  CHECK_THROWS_AS(file.entry("c"), CheckpointError);
  CHECK(file.metadata().empty());
  spill(path, file_of("{}", 0));
  CHECK(SafetensorsFile::open(path).entries().empty());
}

TEST_CASE("a link is refused where links are not followed, and so is everything that is no file") {
  const ScratchDir dir;
  spill(dir.path() / "real", file_of("{}", 0));
  std::filesystem::create_symlink("real", dir.path() / "link");
  std::filesystem::create_directory(dir.path() / "folder");
  CHECK_NOTHROW(SafetensorsFile::open(dir.path() / "link"));
  CHECK_THROWS_AS(SafetensorsFile::open_nofollow(dir.path() / "link"), DataError);
  CHECK_THROWS_AS(SafetensorsFile::open(dir.path() / "folder"), DataError);
  CHECK_THROWS_AS(SafetensorsFile::open(dir.path() / "none"), DataError);
  CHECK_THROWS_AS(SafetensorsFile::open("/dev/null"), DataError);
}

TEST_CASE("a written file reads back bit for bit, sorted by rank then name, header padded to 8") {
  const ScratchDir dir;
  const std::filesystem::path path = dir.path() / "x.safetensors";
  std::vector<TensorBytes> tensors;
  std::vector<std::vector<std::byte>> values;
  for (int t = 0; t <= static_cast<int>(StoredType::i64); ++t) {
    const auto type = static_cast<StoredType>(t);
    for (const std::string name : {"z", "a"}) {
      const Dims shape = name == "z" ? Dims{3, 2} : Dims{};
      const auto count = static_cast<std::size_t>(*num_elements(shape));
      values.push_back(noise(count * size_of(type), name, static_cast<std::uint64_t>(t)));
      tensors.push_back({{name + "." + std::string(to_string(type)), type, shape}, {}});
    }
  }
  tensors.push_back({{"quote\" \\ \xC3\xA9", StoredType::f32, {0}}, {}});
  values.emplace_back();
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = values[i];

  const FileRecord record = write_safetensors(path, tensors, {{"format", "pt"}, {"a\n", "\"b\""}});

  const std::string bytes = slurp(path);
  CHECK(record == FileRecord{bytes.size(), hash128(bytes)});
  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(file.metadata() == Metadata{{"format", "pt"}, {"a\n", "\"b\""}});
  CHECK(file.entries().front().offset % 8 == 0);
  CHECK(file.entries().front().name == "a.I64");
  CHECK(file.entries()[1].name == "z.I64");
  CHECK(file.entries()[2].name == "a.F64");
  CHECK(file.entries().back().name == "z.BOOL");
  REQUIRE(file.entries().size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsEntry& entry = file.entry(tensors[i].spec.name);
    CHECK(entry.type == tensors[i].spec.type);
    CHECK(entry.shape == tensors[i].spec.shape);
    std::vector<std::byte> out(entry.bytes);
    file.read_tensor(entry.name, out);
    CHECK(out == values[i]);
  }
  std::vector<std::byte> part(3);
  file.read_range(file.entry("z.I64"), 5, part);
  CHECK(std::equal(part.begin(), part.end(), values[values.size() - 3].begin() + 5));
  CHECK_THROWS_AS(file.read_range(file.entry("z.I64"), 46, part), InternalError);
}

TEST_CASE("the bytes of a golden file made by the reference implementation") {
  // safetensors 0.8.0: save_file({"b": F32 [2] = 1, 2; "a": BF16 [1] = 1}, metadata {"format":
  // "pt"}).
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string golden =
      u64(padded.size()) + padded + std::string("\x00\x00\x80\x3f\x00\x00\x00\x40\x80\x3f", 10);
  const ScratchDir dir;
  const float b[2] = {1, 2};
  const bf16 a = to_bf16(1);
  write_safetensors(
      dir.path() / "x",
      std::vector<TensorBytes>{{{"a", StoredType::bf16, {1}}, std::as_bytes(std::span(&a, 1))},
                               {{"b", StoredType::f32, {2}}, std::as_bytes(std::span(b))}});
  CHECK(slurp(dir.path() / "x") == golden);
}

TEST_CASE("the writer never overwrites and never writes what the reader would refuse") {
  const ScratchDir dir;
  const auto open = [&](const std::string& file, std::vector<TensorSpec> specs) {
    SafetensorsWriter writer(dir.path() / file, specs, {});
  };
  spill(dir.path() / "there", "x");
  CHECK_THROWS_AS(open("there", {}), StorageError);
  CHECK(slurp(dir.path() / "there") == "x");
  CHECK_THROWS_AS(open("1", {{"a", StoredType::f32, {1}}, {"a", StoredType::f32, {1}}}),
                  CheckpointError);
  CHECK_THROWS_AS(open("2", {{"", StoredType::f32, {1}}}), CheckpointError);
  CHECK_THROWS_AS(open("3", {{"__metadata__", StoredType::f32, {1}}}), CheckpointError);
  CHECK_THROWS_AS(open("4", {{"a", StoredType::f32, {-1}}}), CheckpointError);
  CHECK_THROWS_AS(open("5", {{"a\n", StoredType::f32, {1}}}), CheckpointError);
  CHECK_THROWS_AS(open("6", {{"a\xff", StoredType::f32, {1}}}), CheckpointError);
  const std::vector<TensorSpec> specs{{"a", StoredType::u8, {2}}};
  SafetensorsWriter writer(dir.path() / "7", specs, {});
  const std::vector<std::byte> three(3);
  CHECK_THROWS_AS(writer.write(three), InternalError);
  writer.write(std::span(three).first(1));
  CHECK_THROWS_AS(writer.sync(), InternalError);
}

TEST_CASE("dtypes map to the format's names and back") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                            DType::u32, DType::u16, DType::u8}) {
    CHECK(tensor_dtype(stored_type(dtype)) == dtype);
    CHECK(size_of(stored_type(dtype)) == size_of(dtype));
    CHECK(parse_stored_type(to_string(stored_type(dtype))) == stored_type(dtype));
  }
  CHECK_FALSE(tensor_dtype(StoredType::i8).has_value());
}

}  // namespace llmtrain::checkpoint
