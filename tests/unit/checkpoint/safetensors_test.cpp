#include "lib/checkpoint/safetensors.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"
#include "tests/unit/checkpoint/safetensors_bytes.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

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
