#include "lib/train/memory_ahead.hpp"

#include <chrono>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain::train {

namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t resident_bytes(const Tensor& of) {
  std::vector<unsigned char> pages(of.view().bytes() / kPage);
  REQUIRE(::mincore(of.view().data, of.view().bytes(), pages.data()) == 0);
  std::uint64_t resident = 0;
  for (const unsigned char page : pages) resident += (page & 1) * kPage;
  return resident;
}

}  // namespace

TEST_CASE("memory is taken ahead up to the byte that is asked for, and no further") {
  constexpr std::uint64_t kWanted = 40 << 20, kAll = 256 << 20;
  Device cpu(make_cpu_memory(), kAll);
  const Tensor all = cpu.allocate({kAll}, DType::u8, Category::params, "all");
  {
    const MemoryAhead ahead(cpu, kWanted);
    // No duration is asserted: who never comes so far hangs until the test's limit.
    while (resident_bytes(all) < kWanted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(resident_bytes(all) <= kWanted + (2 << 20));

  { const MemoryAhead stopped(cpu, kAll); }
  { const MemoryAhead none(cpu, 0); }
  Device small(make_cpu_memory(), 1 << 20);
  { const MemoryAhead more_than_there_is(small, kAll); }
}

}  // namespace llmtrain::train
