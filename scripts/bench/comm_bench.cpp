// Measures collectives between processes of one host, through shared memory and over gloo.
//   bench_comm [ranks...]      default: 2 4
// Prints medians in milliseconds per call. The size is that of a rank's input; for all-gather and
// reduce-scatter it is that of the full tensor.
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "base/ignore_sigpipe.h"
#include "comm/gloo/epoll_interposer.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/process/shared_memory_transport.h"
#include "store/store.h"

using namespace mtrain;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kSizes[] = {64 << 10, 1 << 20, 64 << 20};
const char* const kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "p2p"};
constexpr int kOperations = std::size(kNames);
constexpr int kCells = 1 + kOperations * int(std::size(kSizes));  // the first is the barrier

double median(std::vector<double> xs) {
  std::nth_element(xs.begin(), xs.begin() + long(xs.size() / 2), xs.end());
  return xs[xs.size() / 2];
}

// Returns the time of one call among several in a row, which a barrier ends, so that the waiting of
// a rank counts, whichever call it waits in.
double time_of(comm::Communicator& c, int64_t bytes, const std::function<void()>& work) {
  const int repeats = bytes >= 64 << 20 ? 2 : bytes >= 1 << 20 ? 10 : 50;
  std::vector<double> ms;
  for (int batch = 0; batch < 5; ++batch) {
    c.barrier({});
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) work();
    c.barrier({});
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    ms.push_back(took.count() / repeats);
  }
  return median(std::move(ms));
}

void run_rank(comm::Transport& transport, int rank, int ranks, double* cells) {
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  const auto c = transport.connect("bench", all, rank, comm::Traffic::bulk);
  std::vector<float> in(size_t(64 << 20) / 4), out(in.size());
  int cell = 0;
  cells[cell++] = time_of(*c, 0, [&] { c->barrier({}); });
  for (const int64_t bytes : kSizes)
    for (int operation = 0; operation < kOperations; ++operation) {
      const int64_t count = bytes / 4, part = count / ranks;
      const Span whole{in.data(), count, DType::f32}, other{out.data(), count, DType::f32},
          shard{out.data(), part, DType::f32};
      const std::vector<int64_t> parts(size_t(ranks), part);
      const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
      cells[cell++] = time_of(*c, bytes, [&] {
        switch (operation) {
          case 0: return c->all_reduce(whole, comm::Reduce::sum, {});
          case 1: return c->reduce_scatter(whole, shard, comm::Reduce::sum, {});
          case 2: return c->all_gather(shard, whole, {});
          case 3: return c->all_to_all({{whole, parts, other, parts}}, {});
          default:
            return c->exchange({{comm::Transfer::Kind::send, whole, next},
                                {comm::Transfer::Kind::receive, other, before}},
                               Clock::now(), {});
        }
      });
    }
}

// Medians of rank 0.
std::vector<double> run(const std::string& backend, int ranks) {
  const store::StoreServer server({"127.0.0.1", 0, Token::random()});
  int pipes[2];
  if (pipe(pipes) != 0) std::exit(1);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    std::vector<double> cells(kCells);
    const auto timeout = std::chrono::seconds(60);
    if (backend == "shared memory") {
      const auto store = std::make_shared<store::Store>(server.address(), timeout);
      run_rank(*comm::shared_memory_transport(store, rank, ranks, timeout), rank, ranks,
               cells.data());
    } else {
      const IgnoreSigpipe ignore_sigpipe;
      const auto transport = comm::gloo_transport({server.address(), rank, ranks, timeout});
      comm::yield_in_polls(backend == "gloo");
      run_rank(*transport, rank, ranks, cells.data());
    }
    const size_t bytes = cells.size() * sizeof(double);
    _exit(rank > 0 || write(pipes[1], cells.data(), bytes) == ssize_t(bytes) ? 0 : 1);
  }
  std::vector<double> cells(kCells);
  close(pipes[1]);
  if (read(pipes[0], cells.data(), cells.size() * sizeof(double)) <= 0) std::exit(1);
  close(pipes[0]);
  while (wait(nullptr) > 0) {
  }
  return cells;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) worlds.push_back(std::atoi(argv[i]));
  if (worlds.empty()) worlds = {2, 4};
  for (const int ranks : worlds) {
    const auto shared = run("shared memory", ranks), gloo = run("gloo", ranks),
               stalls = run("gloo without yielding", ranks);
    std::printf(
        "| %d ranks | size | shared memory | gloo | gloo / shared | gloo without yielding |\n",
        ranks);
    std::printf("|---|---:|---:|---:|---:|---:|\n");
    for (int cell = 0; cell < kCells; ++cell) {
      const int which = (cell - 1) % kOperations;
      const int64_t kib = cell == 0 ? 0 : kSizes[(cell - 1) / kOperations] >> 10;
      const auto i = size_t(cell);
      std::printf("| %s | %ld KiB | %.3f | %.3f | %.1f | %.3f |\n",
                  cell == 0 ? "barrier" : kNames[which], long(kib), shared[i], gloo[i],
                  gloo[i] / shared[i], stalls[i]);
    }
  }
}
