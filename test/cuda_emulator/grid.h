// Runs CUDA grids on one CPU thread. Each thread of a block is a fiber that runs until it waits for
// its warp or its block. Blocks and threads run in ascending or descending order; a kernel whose
// result depends on the order lacks a barrier. The program stops at errors: a barrier that some
// threads of the warp or block never reach, different operations at one barrier, or an access that
// is not aligned to its size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace cpu_grid {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
  Dim(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z) {}
};

// The position of the running fiber in its grid.
struct Position {
  Dim thread{0, 0, 0}, block{0, 0, 0}, block_size, grid_size;
};
const Position& here();
int lane();

// Sets the order of the grids that are run from now on.
void set_descending(bool descending);

void run_grid(const char* kernel, Dim grid, Dim block, size_t shared,
              const std::function<void()>& thread);

uint64_t grids_run();  // the number of grids that have run

// How often kernels have taken workspace: in the scope of a launch that provides it, and outside of
// one.
struct WorkspaceCounts {
  uint64_t in_scope, outside;
};
void count_workspace(bool in_scope);
WorkspaceCounts workspace_counts();

// The number of calls of attention that asked cuDNN.
void count_cudnn_call();
uint64_t cudnn_calls();

// The shared memory that a block can have: that of compute capability 9.0 by default.
constexpr size_t kSharedOfHopper = 227 * 1024, kSharedOfAda = 99 * 1024;
void set_shared_limit(size_t bytes);
size_t shared_limit();

unsigned char* shared_memory();  // aligned to 128 bytes; NaN at the start of every block

// Programmatic dependent launch (kernels/cuda/device/dependent_launch.h). A grid runs when the
// previous one has ended, so the wait only marks the thread; it stops after a barrier. The end of a
// thread stops if the thread must have waited and has not.
void wait_for_previous_kernel();
void count_dependent_launch();  // one that a launch's caller allows
uint64_t dependent_launches();
void end_of_thread(bool must_have_waited);

void wait_for_block(const char* operation);
void wait_for_warp(const char* operation);

// Gives the value of every lane to all lanes of the warp. Returns an array by lane, which is valid
// until the next exchange but one of the warp.
constexpr size_t kExchangeBytes = 64;
const unsigned char* exchange(const char* operation, const void* value, size_t bytes);
// The same for one int and a block of up to 1024 threads.
const int* exchange_in_block(const char* operation, int value);

[[noreturn]] void stop(const char* why);

// Asynchronous copies, which run when the kernel waits for them.
void copy_later(void* to, const void* from, size_t bytes, bool valid);
void commit_copies();
void wait_for_copies(int groups_left);

}  // namespace cpu_grid
