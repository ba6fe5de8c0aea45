#include <doctest/doctest.h>

#include "kernels/loss.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::int64_t kVocabulary = 11;

std::vector<std::int32_t> some_ids(std::int64_t rows) {
  const PhiloxKey key = philox_key(1, "test", "ids");
  std::vector<std::int32_t> id;
  for (std::int64_t i = 0; i < rows; ++i) {
    id.push_back(static_cast<std::int32_t>(
        philox_below(key, 0, static_cast<std::uint64_t>(i), kVocabulary)));
  }
  return id;
}

std::vector<double> look_up(const std::vector<std::int32_t>& id, std::int64_t hidden, DType dtype,
                            bool accumulate, const KernelTable& table, int threads = 2) {
  Machine machine(table, threads);
  const auto rows = static_cast<std::int64_t>(id.size());
  const Tensor y = machine.of({rows, hidden}, dtype, normals("y", rows * hidden));
  launch(machine.ctx(),
         EmbeddingForward{.id = machine.ints(id),
                          .table = machine.of({kVocabulary, hidden}, dtype,
                                              normals("table", kVocabulary * hidden)),
                          .y = y,
                          .accumulate = accumulate});
  return read_rows(y);
}

std::vector<double> gradient(const std::vector<std::int32_t>& id, std::int64_t hidden, DType dtype,
                             const KernelTable& table, int threads = 2) {
  Machine machine(table, threads);
  const auto rows = static_cast<std::int64_t>(id.size());
  const Tensor dtable =
      machine.of({kVocabulary, hidden}, dtype == DType::f64 ? DType::f64 : DType::f32,
                 normals("dtable", kVocabulary * hidden));
  launch(machine.ctx(),
         EmbeddingBackward{.id = machine.ints(id),
                           .dy = machine.of({rows, hidden}, dtype, normals("dy", rows * hidden)),
                           .dtable = dtable});
  return read_rows(dtable);
}

}  // namespace

TEST_CASE("an embedding copies or adds the row of every id") {
  const std::vector<std::int32_t> id = {3, 0, 3, 10};
  const std::vector<double> table = normals("table", kVocabulary * 2);
  const std::vector<double> y = normals("y", 8);
  std::vector<double> copied, added;
  for (std::size_t i = 0; i < 8; ++i) {
    copied.push_back(table[static_cast<std::size_t>(id[i / 2]) * 2 + i % 2]);
    added.push_back(copied.back() + y[i]);
  }
  CHECK(look_up(id, 2, DType::f64, false, cpu_reference_table()) == copied);
  CHECK(look_up(id, 2, DType::f64, true, cpu_reference_table()) == added);
  CHECK(look_up({}, 2, DType::f32, false, cpu_table()).empty());
}

TEST_CASE("the gradient of an embedding adds the rows of equal ids") {
  const std::vector<double> dy = normals("dy", 6);
  std::vector<double> expected = normals("dtable", kVocabulary * 2);
  for (std::size_t d = 0; d < 2; ++d) {
    expected[8 + d] += dy[d];
    expected[8 + d] += dy[4 + d];
    expected[d] += dy[2 + d];
  }
  CHECK(gradient({4, 0, 4}, 2, DType::f64, cpu_reference_table()) == expected);
}

TEST_CASE("parts of a vocabulary look up and learn their own rows only") {
  constexpr std::int64_t kHidden = 70, kFirst = 4, kHere = 3;
  const VocabPart part{.first = kFirst, .whole = kVocabulary};
  const std::vector<std::int32_t> id = some_ids(40);
  const auto rows = static_cast<std::int64_t>(id.size());
  const auto mine = [&](std::size_t i) { return id[i] >= kFirst && id[i] < kFirst + kHere; };
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table);
    const Tensor whole =
        machine.of({kVocabulary, kHidden}, DType::f32, normals("table", kVocabulary * kHidden));
    const Tensor ids = machine.ints(id);
    for (const bool accumulate : {false, true}) {
      const Tensor y = machine.of({rows, kHidden}, DType::f32, normals("y", rows * kHidden));
      std::vector<double> expected =
          look_up(id, kHidden, DType::f32, accumulate, cpu_reference_table());
      const std::vector<double> before = read_rows(y);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (!mine(i / kHidden)) expected[i] = accumulate ? before[i] : 0;
      }
      launch(machine.ctx(), EmbeddingForward{.id = ids,
                                             .table = whole.row_range(kFirst, kHere),
                                             .y = y,
                                             .accumulate = accumulate,
                                             .part = part});
      CHECK(same_bits(read_rows(y), expected));
    }
    const Tensor dy = machine.of({rows, kHidden}, DType::f32, normals("dy", rows * kHidden));
    const Tensor dtable =
        machine.of({kVocabulary, kHidden}, DType::f32, normals("dtable", kVocabulary * kHidden));
    std::vector<double> expected = read_rows(dtable);
    const std::vector<double> all = gradient(id, kHidden, DType::f32, cpu_reference_table());
    for (std::size_t i = kFirst * kHidden; i < (kFirst + kHere) * kHidden; ++i) {
      expected[i] = all[i];
    }
    launch(machine.ctx(),
           EmbeddingBackward{
               .id = ids, .dy = dy, .dtable = dtable.row_range(kFirst, kHere), .part = part});
    CHECK(same_bits(read_rows(dtable), expected));
  }
}

TEST_CASE("fast embeddings have the bits of the plain kernels for any number of threads") {
  for (const std::int64_t hidden : {1, 8, 63, 64, 200, 768}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::vector<std::int32_t> id = some_ids(131);
      const std::vector<double> dtable = gradient(id, hidden, dtype, cpu_reference_table());
      for (const int threads : {1, 2, 3, 7}) {
        CHECK(same_bits(gradient(id, hidden, dtype, cpu_table(), threads), dtable));
        for (const bool accumulate : {false, true}) {
          CHECK(same_bits(look_up(id, hidden, dtype, accumulate, cpu_table(), threads),
                          look_up(id, hidden, dtype, accumulate, cpu_reference_table())));
        }
      }
    }
  }
}

TEST_CASE("ids outside the vocabulary are refused, naming row and id") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const std::int32_t bad : {-1, 11}) {
      const std::string message = fmt::format("row 2 has token id {}", bad);
      CHECK_THROWS_WITH_AS(look_up({0, 1, bad}, 4, DType::f32, false, *table),
                           doctest::Contains(message.c_str()), DataError);
      CHECK_THROWS_WITH_AS(gradient({0, 1, bad}, 4, DType::f32, *table),
                           doctest::Contains(message.c_str()), DataError);
    }
  }
}

TEST_CASE("embeddings check their operands") {
  Machine machine(cpu_table());
  const Tensor id = machine.ints({0, 1, 2});
  const Tensor table = machine.allocate({5, 4}, DType::bf16);
  const Tensor y = machine.allocate({3, 4}, DType::bf16);
  const Tensor dtable = machine.allocate({5, 4}, DType::f32);
  EmbeddingForward{.id = id, .table = table, .y = y}.check();
  EmbeddingBackward{.id = id, .dy = y, .dtable = dtable}.check();
  EmbeddingForward{.id = id, .table = table, .y = y, .part = {.first = 3, .whole = 8}}.check();
  CHECK_THROWS_AS(
      (EmbeddingForward{.id = id, .table = table, .y = y, .part = {.first = 4, .whole = 8}}
           .check()),
      InternalError);
  CHECK_THROWS_AS((EmbeddingForward{.id = y, .table = table, .y = y}.check()), InternalError);
  CHECK_THROWS_AS((EmbeddingForward{.id = id, .table = dtable, .y = y}.check()), InternalError);
  CHECK_THROWS_AS((EmbeddingForward{.id = id, .table = table, .y = table}.check()), InternalError);
  CHECK_THROWS_AS((EmbeddingBackward{.id = id, .dy = y, .dtable = table}.check()), InternalError);
  CHECK_THROWS_AS((EmbeddingBackward{.id = id, .dy = dtable, .dtable = dtable}.check()),
                  InternalError);
}

}  // namespace llmtrain::kernels
