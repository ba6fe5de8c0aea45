#include "tests/cuda_emulation/fiber.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)

// swapcontext(3) asks the kernel for the signal mask at every switch, which takes ten times as long
// as what a barrier needs: the registers that a call keeps.
asm(R"(
.text
.p2align 4
.type llmtrain_simt_switch, @function
llmtrain_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size llmtrain_simt_switch, .-llmtrain_simt_switch
)");

extern "C" void llmtrain_simt_switch(void** save, void* go);

namespace simt {

void prepare(Context& context, std::byte* stack, std::size_t bytes, void (*entry)()) {
  constexpr std::size_t kSavedRegisters = 6;
  // A function begins with its return address 8 bytes above a multiple of 16.
  const std::uintptr_t top = reinterpret_cast<std::uintptr_t>(stack + bytes) / 16 * 16 - 16;
  auto* const words = reinterpret_cast<std::uint64_t*>(top) - kSavedRegisters;
  std::memset(words, 0, (kSavedRegisters + 2) * sizeof(std::uint64_t));
  words[kSavedRegisters] = reinterpret_cast<std::uintptr_t>(entry);
  context.stack_pointer = words;
}

void switch_stacks(Context& from, const Context& to) {
  llmtrain_simt_switch(&from.stack_pointer, to.stack_pointer);
}

}  // namespace simt

#else

#include <ucontext.h>

namespace simt {

namespace {
ucontext_t& native(Context& context) {
  if (context.native == nullptr) context.native = new ucontext_t;  // kept with its stack
  return *static_cast<ucontext_t*>(context.native);
}
}  // namespace

void prepare(Context& context, std::byte* stack, std::size_t bytes, void (*entry)()) {
  ucontext_t& own = native(context);
  getcontext(&own);
  own.uc_stack.ss_sp = stack;
  own.uc_stack.ss_size = bytes;
  own.uc_link = nullptr;
  makecontext(&own, entry, 0);
}

void switch_stacks(Context& from, const Context& to) {
  swapcontext(&native(from), static_cast<ucontext_t*>(to.native));
}

}  // namespace simt

#endif
