// The intra-op thread pool. A rank has one pool, which its streams share. Kernels use it through
// parallel_for(). This uses the current thread's pool, which a stream's worker sets with
// ThreadPool::Scope, and runs serially if the thread has none.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mtrain {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means no helper thread. Throws UserError if the system cannot
  // start that many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  // Calls fn(i) once for every i in [0, tasks), on the caller and the helpers; returns when all are
  // done. Any thread may run a task; its result must therefore depend only on i. A call while the
  // pool is busy with another stream's work, or from inside a task, runs serially. The first
  // exception of a task is rethrown.
  void run(int64_t tasks, const std::function<void(int64_t)>& fn);

  // Makes `pool` the current pool of this thread as long as the scope exists.
  class Scope {
   public:
    explicit Scope(ThreadPool* pool);
    ~Scope();

   private:
    ThreadPool* previous_;
  };
  static ThreadPool* current();

 private:
  struct Job;
  void stop();
  void work();
  static void help(Job& job);

  std::vector<std::thread> workers_;
  std::mutex busy_;  // held by the caller whose job runs
  std::mutex mutex_;
  std::condition_variable wake_;
  Job* job_ = nullptr;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> inside_{0};
  bool stop_ = false;
};

int current_threads();  // threads of the current pool; 1 without a pool

// Calls fn(begin, end) for chunks of `grain` that cover [0, n). The chunks depend only on n and
// grain, never on the number of threads. A reduction per chunk is therefore deterministic.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

}  // namespace mtrain
