// One large block by every call that is interposed, and from within the C and C++ libraries.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <memory>
#include <pthread.h>
#include <sys/mman.h>
#include <thread>

#include <fmt/format.h>

#include "tests/memory/probe/probes.hpp"
#include "tests/memory/probe/report.hpp"

namespace llmtrain::memory_probe {

namespace {

constexpr std::size_t kBytes = 100'000;
constexpr std::size_t kStack = 8 << 20;

// A write that the compiler must keep, so that it cannot leave the block out.
void touch(void* block) { *static_cast<volatile char*>(block) = 1; }

void touch_and_free(void* block) {
  touch(block);
  std::free(block);
}

void touch_and_unmap(void* block) {
  touch(block);
  ::munmap(block, kBytes);
}

void* map() {
  return ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

struct Case {
  const char* what;
  const char* call;
  std::size_t bytes;
  void (*take)();
};
constexpr Case kCases[] = {
    {"malloc", "malloc", kBytes, [] { touch_and_free(std::malloc(kBytes)); }},
    {"calloc", "calloc", kBytes, [] { touch_and_free(std::calloc(kBytes / 4, 4)); }},
    {"realloc", "realloc", kBytes, [] { touch_and_free(std::realloc(std::malloc(8), kBytes)); }},
    {"memalign", "memalign", kBytes, [] { touch_and_free(::memalign(64, kBytes)); }},
    {"aligned_alloc", "aligned_alloc", 2 * kBytes,
     [] { touch_and_free(std::aligned_alloc(64, 2 * kBytes)); }},
    {"posix_memalign", "posix_memalign", kBytes,
     [] {
       void* block = nullptr;
       if (::posix_memalign(&block, 64, kBytes) == 0) touch_and_free(block);
     }},
    {"valloc", "valloc", kBytes, [] { touch_and_free(::valloc(kBytes)); }},
    {"mmap", "mmap", kBytes, [] { touch_and_unmap(map()); }},
    {"mremap", "mremap", 2 * kBytes,
     [] {
       void* block = ::mremap(map(), kBytes, 2 * kBytes, MREMAP_MAYMOVE);
       touch(block);
       ::munmap(block, 2 * kBytes);
     }},
    {"a thread's stack", "pthread_create", kStack, [] { std::thread([] {}).join(); }},
    {"a block of another thread", "malloc", kBytes + 1,
     [] { std::thread([] { touch_and_free(std::malloc(kBytes + 1)); }).join(); }},
    {"operator new", "malloc", kBytes, [] { touch(std::make_unique<char[]>(kBytes).get()); }},
    {"the C library's own", "malloc", kBytes,
     [] {
       static const std::string text(kBytes - 1, 'x');
       touch_and_free(::strdup(text.c_str()));
     }},
};

}  // namespace

int probe_itself() {
  Findings findings;
  for (const Case& one : kCases) {
    one.take();  // what is only made once
    start_recording();
    one.take();
    const std::vector<Block> blocks = stop_recording();
    const bool seen = std::any_of(blocks.begin(), blocks.end(), [&](const Block& block) {
      return block.call == one.call && block.bytes == one.bytes && !block.callers.empty();
    });
    if (!seen) findings.add(fmt::format("{} of {} B was not seen", one.what, one.bytes));
  }
  start_recording();
  touch_and_free(std::malloc(kLargeBlock - 1));
  for (const Block& block : stop_recording()) findings.add("not large: " + to_string(block));
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace llmtrain::memory_probe
