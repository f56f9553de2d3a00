#include "fiber.h"

#ifdef __x86_64__
// Pushes the registers that a call must preserve onto the old stack, and pops the new stack's.
asm(R"(
  .text
  .globl cpu_grid_switch
  .type cpu_grid_switch, @function
cpu_grid_switch:
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
  .size cpu_grid_switch, .-cpu_grid_switch
  .section .note.GNU-stack,"",@progbits
  .text
)");
#endif
