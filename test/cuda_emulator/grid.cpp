#include "grid.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fiber.h"

namespace cpu_grid {
namespace {

constexpr size_t kStack = 256 * 1024;
constexpr int kMaxThreads = 1024, kWarp = 32;

enum class State { ready, at_warp, at_block, done };

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool valid;
};

struct Fiber {
  Context context;
  void* stack = nullptr;
  State state = State::done;
  Position position;
  int index = 0;
  const char* operation = "";
  unsigned exchanges = 0, block_exchanges = 0;
  bool switched = false, waited = false;  // at a barrier; for the previous kernel
  std::vector<std::vector<Copy>> copies;  // the last group is open
};

struct Warp {
  alignas(16) unsigned char values[2][kWarp][kExchangeBytes];
};

struct Engine {
  std::vector<Fiber> fibers = std::vector<Fiber>(kMaxThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMaxThreads / kWarp);
  int block_values[2][kMaxThreads];
  Context scheduler;
  Fiber* running = nullptr;
  const std::function<void()>* thread = nullptr;
  const char* kernel = "";
  std::unique_ptr<unsigned char[]> shared;
  unsigned char* shared_begin = nullptr;
  bool descending = false;
  size_t shared_limit = kSharedOfHopper;
  uint64_t grids = 0;
};
Engine& engine() {
  static Engine e;
  return e;
}

void enter() {
  for (;;) {
    Engine& e = engine();
    (*e.thread)();
    e.running->state = State::done;
    switch_context(e.running->context, e.scheduler);
  }
}

void make(Fiber& f) {
  f.stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (f.stack == MAP_FAILED) stop("no memory for a fiber");
  make_context(f.context, f.stack, kStack, enter);
}

void wait(State state, const char* operation) {
  Engine& e = engine();
  Fiber& f = *e.running;
  f.state = state;
  f.operation = operation;
  f.switched = true;
  switch_context(f.context, e.scheduler);
}

void resume(Fiber& f) {
  Engine& e = engine();
  e.running = &f;
  switch_context(e.scheduler, f.context);
  e.running = nullptr;
}

void stop_waiting(const Fiber& a, const Fiber& b, const char* of) {
  std::fprintf(stderr, "thread %d waits at %s, thread %d of its %s: %s\n", a.index, a.operation,
               b.index, of, b.state == State::done ? "has ended" : b.operation);
  stop("threads do not come together");
}

// Runs the threads of a warp to their ends, or to the block's barrier.
void run_warp(int begin, int end) {
  Engine& e = engine();
  std::vector<Fiber>& f = e.fibers;
  for (;;) {
    for (int i = begin; i < end; ++i) {
      Fiber& next = f[size_t(e.descending ? begin + end - 1 - i : i)];
      if (next.state == State::ready) resume(next);
    }
    if (f[size_t(begin)].state != State::at_warp) {
      for (int i = begin; i < end; ++i)
        if (f[size_t(i)].state == State::at_warp)
          stop_waiting(f[size_t(i)], f[size_t(begin)], "warp");
      return;
    }
    for (int i = begin; i < end; ++i) {
      if (f[size_t(i)].state != State::at_warp ||
          std::strcmp(f[size_t(i)].operation, f[size_t(begin)].operation) != 0)
        stop_waiting(f[size_t(begin)], f[size_t(i)], "warp");
    }
    if (end - begin != kWarp) stop("an operation of whole warps in a warp of fewer lanes");
    for (int i = begin; i < end; ++i) f[size_t(i)].state = State::ready;
  }
}

void run_block(int threads) {
  Engine& e = engine();
  std::vector<Fiber>& f = e.fibers;
  const int warps = (threads + kWarp - 1) / kWarp;
  for (;;) {
    for (int w = 0; w < warps; ++w) {
      const int warp = e.descending ? warps - 1 - w : w;
      run_warp(warp * kWarp, std::min(threads, (warp + 1) * kWarp));
    }
    if (f[0].state == State::done) {
      for (int i = 0; i < threads; ++i)
        if (f[size_t(i)].state != State::done) stop_waiting(f[size_t(i)], f[0], "block");
      return;
    }
    for (int i = 0; i < threads; ++i) {
      if (f[size_t(i)].state != State::at_block ||
          std::strcmp(f[size_t(i)].operation, f[0].operation) != 0)
        stop_waiting(f[0], f[size_t(i)], "block");
      f[size_t(i)].state = State::ready;
    }
  }
}

}  // namespace

void stop(const char* why) {
  const Engine& e = engine();
  std::fprintf(stderr, "kernel %s: %s\n", e.kernel, why);
  if (e.running) {
    const Position& p = e.running->position;
    std::fprintf(stderr, "in thread (%u, %u, %u) of block (%u, %u, %u)\n", p.thread.x, p.thread.y,
                 p.thread.z, p.block.x, p.block.y, p.block.z);
  }
  std::abort();
}

const Position& here() { return engine().running->position; }
int lane() { return engine().running->index % kWarp; }
void set_descending(bool descending) { engine().descending = descending; }
uint64_t grids_run() { return engine().grids; }

namespace {
std::atomic<uint64_t> workspace_in_scope{0}, workspace_outside{0}, asked_cudnn{0}, started_early{0};
}  // namespace
void count_workspace(bool in_scope) { ++(in_scope ? workspace_in_scope : workspace_outside); }
WorkspaceCounts workspace_counts() { return {workspace_in_scope, workspace_outside}; }
void count_dependent_launch() { ++started_early; }
uint64_t dependent_launches() { return started_early; }
void count_cudnn_call() { ++asked_cudnn; }
uint64_t cudnn_calls() { return asked_cudnn; }
void set_shared_limit(size_t bytes) { engine().shared_limit = bytes; }
size_t shared_limit() { return engine().shared_limit; }
unsigned char* shared_memory() { return engine().shared_begin; }

void run_grid(const char* kernel, Dim grid, Dim block, size_t shared,
              const std::function<void()>& thread) {
  Engine& e = engine();
  e.kernel = kernel;
  ++e.grids;
  e.thread = &thread;
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads || block.z > 64) stop("a block of too many threads");
  if (grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 ||
      grid.z > 65535)
    stop("a grid of no blocks, or too many");
  if (shared > e.shared_limit) stop("too much shared memory");
  constexpr size_t kAlign = 128;
  e.shared = std::make_unique<unsigned char[]>(shared + kAlign);
  e.shared_begin = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<uintptr_t>(e.shared.get()) + kAlign - 1) / kAlign * kAlign);
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t n = 0; n < blocks; ++n) {
    const uint64_t b = e.descending ? blocks - 1 - n : n;
    std::memset(e.shared_begin, 0xff, shared);
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& f = e.fibers[i];
      if (!f.stack) make(f);
      f.state = State::ready;
      f.index = int(i);
      f.exchanges = f.block_exchanges = 0;
      f.switched = f.waited = false;
      f.copies.assign(1, {});
      f.position = {
          {i % block.x, i / block.x % block.y, i / block.x / block.y},
          {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)},
          block,
          grid};
    }
    run_block(int(threads));
  }
}

void wait_for_previous_kernel() {
  Fiber& f = *engine().running;
  if (f.switched) stop("a wait for the previous kernel after a barrier");
  f.waited = true;
}
void end_of_thread(bool must_have_waited) {
  if (must_have_waited && !engine().running->waited)
    stop("a thread has ended without a wait for the previous kernel");
}

void wait_for_block(const char* operation) { wait(State::at_block, operation); }
void wait_for_warp(const char* operation) { wait(State::at_warp, operation); }

const unsigned char* exchange(const char* operation, const void* value, size_t bytes) {
  Fiber& f = *engine().running;
  if (bytes > kExchangeBytes) stop("a value too large to exchange");
  auto& values = engine().warps[size_t(f.index / kWarp)].values[f.exchanges++ % 2];
  std::memcpy(values[f.index % kWarp], value, bytes);
  wait(State::at_warp, operation);
  return values[0];
}

const int* exchange_in_block(const char* operation, int value) {
  Fiber& f = *engine().running;
  int* values = engine().block_values[f.block_exchanges++ % 2];
  values[f.index] = value;
  wait(State::at_block, operation);
  return values;
}

void copy_later(void* to, const void* from, size_t bytes, bool valid) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    stop("an asynchronous copy that is not aligned");
  engine().running->copies.back().push_back({to, from, bytes, valid});
}
void commit_copies() { engine().running->copies.emplace_back(); }
void wait_for_copies(int groups_left) {
  auto& copies = engine().running->copies;
  while (int(copies.size()) - 1 > groups_left) {
    for (const Copy& c : copies.front()) {
      if (c.valid)
        std::memcpy(c.to, c.from, c.bytes);
      else
        std::memset(c.to, 0, c.bytes);
    }
    copies.erase(copies.begin());
  }
}

}  // namespace cpu_grid
