// Runs CUDA grids on one CPU thread: each thread of a block is a fiber that runs until it waits for
// its warp or its block. Blocks and threads run in ascending or descending order; a kernel whose
// result depends on it lacks a barrier. What does not come together stops the program: a barrier
// that some threads of the warp or block never reach, other operations at one barrier, an access
// that is not aligned to its size.
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

// Where the running fiber is.
struct Position {
  Dim thread{0, 0, 0}, block{0, 0, 0}, block_size, grid_size;
};
const Position& here();
int lane();

// Of the grids to come.
void set_descending(bool descending);

void run_grid(const char* kernel, Dim grid, Dim block, size_t shared,
              const std::function<void()>& thread);

uint64_t grids_run();  // so far

// Takes of memory for a launch's time, by whether the launch had said where it comes from.
struct ScratchTakes {
  uint64_t said, unsaid;
};
void count_scratch(bool said);
ScratchTakes scratch_takes();  // so far

unsigned char* shared_memory();  // aligned to 128 bytes; NaN in every block anew

void wait_for_block(const char* operation);
void wait_for_warp(const char* operation);

// Gives every lane's value to all: at [lane], valid until the warp's next exchange but one.
constexpr size_t kExchangeBytes = 64;
const unsigned char* exchange(const char* operation, const void* value, size_t bytes);
// The same for a block of up to 1024 threads and one int.
const int* exchange_in_block(const char* operation, int value);

[[noreturn]] void stop(const char* why);

// Copies that end when they are waited for.
void copy_later(void* to, const void* from, size_t bytes, bool valid);
void commit_copies();
void wait_for_copies(int groups_left);

}  // namespace cpu_grid
