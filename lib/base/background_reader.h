// Reads what may take for ever, such as files of a server that does not answer.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace mtrain {

// A thread calls `read` whenever somebody asks. Those who ask wait for a bounded time and then get
// the value that was read last. `read` must own all that it uses, since it may outlive this object.
template <class T>
class BackgroundReader {
 public:
  using Clock = std::chrono::steady_clock;
  struct Value {
    T value;
    std::chrono::duration<double> age;  // since it was read
  };

  explicit BackgroundReader(std::function<T()> read) : state_(std::make_shared<State>()) {
    thread_ = std::thread(serve, state_, std::move(read));
  }
  // Waits for the current read, for at most kPatience.
  ~BackgroundReader() {
    std::unique_lock lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
    const bool ended =
        state_->changed.wait_for(lock, kPatience, [this] { return state_->has_ended; });
    lock.unlock();
    ended ? thread_.join() : thread_.detach();
  }
  BackgroundReader(const BackgroundReader&) = delete;
  BackgroundReader& operator=(const BackgroundReader&) = delete;

  // Returns a value that is read now. After `patience` it is the one that was read last, or nothing
  // if none was. Any thread may call it.
  std::optional<Value> get(std::chrono::milliseconds patience) {
    std::unique_lock lock(state_->mutex);
    const uint64_t before = state_->reads;
    state_->wanted = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, patience, [&] { return state_->reads != before; });
    if (!state_->value) return std::nullopt;
    return Value{*state_->value, Clock::now() - state_->read_at};
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{500};

  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool wanted = false, ends = false, has_ended = false;
    uint64_t reads = 0;  // that have ended
    std::optional<T> value;
    Clock::time_point read_at;
  };

  static void serve(const std::shared_ptr<State>& state, const std::function<T()>& read) {
    std::unique_lock lock(state->mutex);
    while (true) {
      state->changed.wait(lock, [&] { return state->wanted || state->ends; });
      if (state->ends) break;
      state->wanted = false;
      lock.unlock();
      T value = read();
      lock.lock();
      state->value = std::move(value);
      state->read_at = Clock::now();
      ++state->reads;
      state->changed.notify_all();
    }
    state->has_ended = true;
    state->changed.notify_all();
  }

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace mtrain
