// Switches between stacks. On x86-64 this takes no system call; swapcontext makes two of them.
#pragma once
#include <cstddef>

#ifdef __x86_64__

extern "C" void cpu_grid_switch(void** save, void* load);

namespace cpu_grid {

struct Context {
  void* stack_pointer = nullptr;
};

inline void switch_context(Context& from, Context& to) {
  cpu_grid_switch(&from.stack_pointer, to.stack_pointer);
}

// The first switch to `c` calls enter(), which must not return.
inline void make_context(Context& c, void* stack, size_t bytes, void (*enter)()) {
  constexpr size_t kRegisters = 6;
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes);
  *--top = nullptr;  // where a caller's return address would be
  *--top = reinterpret_cast<void*>(enter);
  for (size_t i = 0; i < kRegisters; ++i) *--top = nullptr;
  c.stack_pointer = top;
}

}  // namespace cpu_grid

#else

#include <ucontext.h>

namespace cpu_grid {

using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

inline void make_context(Context& c, void* stack, size_t bytes, void (*enter)()) {
  getcontext(&c);
  c.uc_stack.ss_sp = stack;
  c.uc_stack.ss_size = bytes;
  c.uc_link = nullptr;
  makecontext(&c, enter, 0);
}

}  // namespace cpu_grid

#endif
