// The executable's own malloc, mmap and pthread_create stand before those of the C library for all
// shared libraries too (glibc manual, "Replacing malloc"); they count and pass on. What the C
// library maps for itself is not seen: memory behind malloc and stacks of threads, both counted at
// the call that asked for them.
#include "tests/memory/probe/interpose.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>
#include <memory>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

namespace llmtrain::memory_probe {

namespace {

struct RawBlock {
  const char* call = nullptr;
  std::size_t bytes = 0;
  std::array<void*, 40> frames{};
  int num_frames = 0;
};

// Filled without taking memory.
std::array<RawBlock, 512> raw_blocks;
std::atomic<std::size_t> num_blocks{0};
std::atomic<bool> recording{false};
thread_local bool inside = false;

}  // namespace

void note(const char* call, std::size_t bytes) {
  if (bytes < kLargeBlock || !recording.load(std::memory_order_relaxed) || inside) return;
  const std::size_t i = num_blocks.fetch_add(1);
  if (i >= raw_blocks.size()) return;
  inside = true;
  RawBlock& block = raw_blocks[i];
  block.call = call;
  block.bytes = bytes;
  block.num_frames = ::backtrace(block.frames.data(), static_cast<int>(block.frames.size()));
  inside = false;
}

void start_recording() {
  // The first backtrace loads a library.
  [[maybe_unused]] static const int loaded = [] {
    std::array<void*, 4> frames{};
    return ::backtrace(frames.data(), static_cast<int>(frames.size()));
  }();
  num_blocks = 0;
  recording = true;
}

namespace {

// The function at an address; where its library does not name it, the library.
std::string name_of(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0) return "?";
  if (info.dli_sname == nullptr) {
    const std::string_view file = info.dli_fname;
    return std::string(file.substr(file.rfind('/') + 1));
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  const std::string name = readable ? readable.get() : info.dli_sname;
  return name.substr(0, name.find('('));
}

std::string callers_of(const RawBlock& block) {
  constexpr int kOwnFrames = 2;
  constexpr int kNames = 12;
  std::string callers, last;
  for (int f = kOwnFrames, names = 0; f < block.num_frames && names < kNames; ++f) {
    const std::string name = name_of(block.frames[static_cast<std::size_t>(f)]);
    if (name == last) continue;
    callers += (callers.empty() ? "" : " < ") + name;
    last = name;
    ++names;
  }
  return callers;
}

}  // namespace

std::vector<Block> stop_recording() {
  recording = false;
  const std::size_t all = num_blocks;
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < std::min(all, raw_blocks.size()); ++i) {
    const RawBlock& raw = raw_blocks[i];
    blocks.push_back({raw.call, raw.bytes, callers_of(raw)});
  }
  if (all > raw_blocks.size()) {
    blocks.push_back({fmt::format("{} more calls", all - raw_blocks.size()), kLargeBlock, "?"});
  }
  return blocks;
}

std::string to_string(const Block& block) {
  return fmt::format("{} B by {} from {}", block.bytes, block.call, block.callers);
}

}  // namespace llmtrain::memory_probe

using llmtrain::memory_probe::note;

extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  note("malloc", bytes);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) noexcept {
  note("calloc", count * bytes);
  return __libc_calloc(count, bytes);
}

void* realloc(void* block, std::size_t bytes) noexcept {
  note("realloc", bytes);
  return __libc_realloc(block, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  note("memalign", bytes);
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  note("aligned_alloc", bytes);
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) noexcept {
  note("posix_memalign", bytes);
  void* block = __libc_memalign(alignment, bytes);
  if (block == nullptr) return ENOMEM;
  *result = block;
  return 0;
}

void* valloc(std::size_t bytes) noexcept {
  note("valloc", bytes);
  return __libc_memalign(static_cast<std::size_t>(::getpagesize()), bytes);
}

void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
           off_t offset) noexcept {
  note((flags & MAP_ANONYMOUS) != 0 ? "mmap" : "mmap of a file", bytes);
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

void* mmap64(void* address, std::size_t bytes, int protection, int flags, int file,
             off64_t offset) noexcept {
  return ::mmap(address, bytes, protection, flags, file, offset);
}

void* mremap(void* address, std::size_t old_bytes, std::size_t bytes, int flags, ...) noexcept {
  note("mremap", bytes);
  std::va_list rest;
  va_start(rest, flags);
  void* target = (flags & MREMAP_FIXED) != 0 ? va_arg(rest, void*) : nullptr;
  va_end(rest);
  return reinterpret_cast<void*>(::syscall(SYS_mremap, address, old_bytes, bytes, flags, target));
}

void* sbrk(std::intptr_t bytes) noexcept {
  static const auto next = reinterpret_cast<void* (*)(std::intptr_t)>(::dlsym(RTLD_NEXT, "sbrk"));
  if (bytes > 0) note("sbrk", static_cast<std::size_t>(bytes));
  return next(bytes);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) noexcept {
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  std::size_t stack_bytes = 8 << 20;
  if (attributes != nullptr) ::pthread_attr_getstacksize(attributes, &stack_bytes);
  note("pthread_create", stack_bytes);
  return next(thread, attributes, run, argument);
}

}  // extern "C"
