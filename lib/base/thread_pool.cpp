#include "base/thread_pool.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mtrain {

namespace {
thread_local ThreadPool* t_pool = nullptr;
thread_local bool t_inside = false;
// A helper polls for the next job this many times before it sleeps: kernels follow each other
// within microseconds.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for a condition that will soon hold: spins, then yields, since there may be more ranks than
// cores.
template <class Ready>
void spin_until(Ready ready) {
  for (int spin = 0; !ready(); ++spin) spin < kSpins ? pause() : std::this_thread::yield();
}
}  // namespace

struct ThreadPool::Job {
  int64_t tasks;
  const std::function<void(int64_t)>* fn;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::exception_ptr failure;
};

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      stop();  // no destructor runs if the constructor throws
      throw UserError(fmt::format("train.threads={}: the system gave {} and then no more ({})",
                                  threads, i, e.code().message()),
                      "set train.threads to fewer, or raise the limits of threads and memory");
    }
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::help(Job& job) {
  const bool was_inside = std::exchange(t_inside, true);
  for (int64_t i; (i = job.next.fetch_add(1)) < job.tasks;) {
    try {
      (*job.fn)(i);
    } catch (...) {
      std::lock_guard lock(job.mutex);
      if (!job.failure) job.failure = std::current_exception();
    }
    job.done.fetch_add(1);
  }
  t_inside = was_inside;
}

void ThreadPool::work() {
  uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load() == seen; ++spin) pause();
    Job* job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      seen = generation_.load();
      if (stop_) return;
      job = job_;
      // Counted under the mutex, since the caller clears job_ before it waits until inside_ is 0.
      if (job) ++inside_;
    }
    if (!job) continue;
    help(*job);
    --inside_;
  }
}

void ThreadPool::run(int64_t tasks, const std::function<void(int64_t)>& fn) {
  std::unique_lock busy(busy_, std::defer_lock);
  if (tasks <= 1 || workers_.empty() || t_inside || !busy.try_lock()) {
    for (int64_t i = 0; i < tasks; ++i) fn(i);
    return;
  }
  Job job{.tasks = tasks, .fn = &fn};
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    ++generation_;
  }
  wake_.notify_all();
  help(job);
  spin_until([&] { return job.done.load() == tasks; });
  {
    std::lock_guard lock(mutex_);
    job_ = nullptr;
  }
  // The job lives on this stack: no helper may still use it.
  spin_until([&] { return inside_.load() == 0; });
  if (job.failure) std::rethrow_exception(job.failure);
}

ThreadPool::Scope::Scope(ThreadPool* pool) : previous_(std::exchange(t_pool, pool)) {}
ThreadPool::Scope::~Scope() { t_pool = previous_; }
ThreadPool* ThreadPool::current() { return t_pool; }

int current_threads() { return t_pool ? t_pool->threads() : 1; }

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) {
  MT_CHECK(grain > 0, "grain {}", grain);
  const int64_t chunks = (n + grain - 1) / grain;
  const auto chunk = [&](int64_t i) { fn(i * grain, std::min(n, (i + 1) * grain)); };
  if (t_pool && chunks > 1) return t_pool->run(chunks, chunk);
  for (int64_t i = 0; i < chunks; ++i) chunk(i);
}

}  // namespace mtrain
