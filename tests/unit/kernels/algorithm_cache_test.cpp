#include "kernels/cuda/rules/algorithm_cache.hpp"

#include <filesystem>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"

namespace llmtrain::kernels::cuda {

namespace {

const std::string kDigits =
    "0000000000000001"
    "0000000000000002"
    "0000000000000003"
    "ffffffffffffffff"
    "0000000000000005"
    "0000000000000006"
    "0000000000000007"
    "0123456789abcdef";
const ProductAlgorithm kAlgorithm{{1, 2, 3, ~0ull, 5, 6, 7, 0x0123456789abcdef}, 12.5};

std::string line_of(const std::string& product, const std::string& library,
                    const std::string& gpu) {
  return product + '\t' + library + '\t' + gpu + '\t' + kDigits + "\t12.500\n";
}

const std::string kHeader = "llmtrain product algorithms 1\n";

}  // namespace

TEST_CASE("measured algorithms survive being written and read") {
  AlgorithmCache cache("cuBLASLt 13.1.0", "NVIDIA H100");
  cache.put("bf16 [1, 2]", kAlgorithm);
  CHECK(cache.text() == kHeader + line_of("bf16 [1, 2]", "cuBLASLt 13.1.0", "NVIDIA H100"));
  AlgorithmCache again("cuBLASLt 13.1.0", "NVIDIA H100");
  CHECK(again.read(cache.text()) == 0);
  REQUIRE(again.find("bf16 [1, 2]") != nullptr);
  CHECK(*again.find("bf16 [1, 2]") == kAlgorithm);
  CHECK(again.find("bf16 [1, 3]") == nullptr);
}

TEST_CASE("algorithms of other versions and GPUs are not used, but kept") {
  const std::string text = kHeader + line_of("p", "cuBLASLt 12.9.1", "NVIDIA H100") +
                           line_of("p", "cuBLASLt 13.1.0", "NVIDIA A100");
  AlgorithmCache cache("cuBLASLt 13.1.0", "NVIDIA H100");
  CHECK(cache.read(text) == 0);
  CHECK(cache.find("p") == nullptr);
  CHECK(cache.text() == text);
  CHECK(cache.read(text) == 0);
  CHECK(cache.text() == text);
}

TEST_CASE("lines that cannot be read are counted and dropped") {
  const std::string good = line_of("good", "lib", "gpu");
  for (const std::string& bad :
       {std::string("noise\n"), std::string("p\tlib\tgpu\t12\t1\n"),
        good.substr(0, good.size() - 8), "p\tlib\tgpu\t" + kDigits + "\tnan\n",
        "p\tlib\tgpu\t" + kDigits + "\t-1\n", "p\tlib\tgpu\t" + kDigits + "\t1 \n",
        "p\tlib\tgpu\t" + kDigits + "\t\n", "\tlib\tgpu\t" + kDigits + "\t1\n",
        "p\tlib\tgpu\t+" + kDigits.substr(1) + "\t1\n", "p\tlib\tgpu\t" + kDigits + "\t1\tmore\n",
        std::string("\t\t\t\t\n"), std::string("\0\xff\n", 3)}) {
    CAPTURE(bad);
    AlgorithmCache cache("lib", "gpu");
    CHECK(cache.read(kHeader + bad + (bad.back() == '\n' ? "" : "\n") + good) == 1);
    CHECK(cache.find("good") != nullptr);
    CHECK(cache.find("p") == nullptr);
    CHECK(cache.text() == kHeader + good);
  }
}

TEST_CASE("a text with another header says nothing") {
  AlgorithmCache cache("lib", "gpu");
  CHECK(cache.read("llmtrain product algorithms 2\n" + line_of("p", "lib", "gpu")) == 2);
  CHECK(cache.find("p") == nullptr);
  CHECK(cache.read("") == 1);
}

TEST_CASE("an algorithm cache is kept in a file, whatever lay there") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / "llmtrain_algorithm_cache_test.txt";
  std::filesystem::remove(file);
  AlgorithmCache cache("lib", "gpu");
  cache.load(file);
  cache.put("p", kAlgorithm);
  cache.save(file);
  AlgorithmCache again("lib", "gpu");
  again.load(file);
  CHECK(again.text() == cache.text());
  write_file_atomic(file,
                    "\x7f"
                    "ELF");
  AlgorithmCache none("lib", "gpu");
  none.load(file);
  CHECK(none.find("p") == nullptr);
  std::filesystem::remove(file);
}

TEST_CASE("names that would break the lines are refused") {
  CHECK_THROWS_AS(AlgorithmCache("a\tb", "gpu"), InternalError);
  CHECK_THROWS_AS(AlgorithmCache("lib", ""), InternalError);
  AlgorithmCache cache("lib", "gpu");
  CHECK_THROWS_AS(cache.put("two\nlines", {}), InternalError);
}

}  // namespace llmtrain::kernels::cuda
