#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/nccl/nccl_helper.h"
#include "comm/reduce.h"

namespace mtrain::comm {

namespace {

using Clock = Communicator::Clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kWatch = milliseconds(10);  // the watchdog checks the pending calls this often
// The watchdog asks the store, which serves all ranks, this often. A healthy call ends before the
// first request.
constexpr std::chrono::nanoseconds kAsk = milliseconds(250);
// An answer that took longer was not refused, but has not come.
constexpr std::chrono::nanoseconds kSilent = milliseconds(1000);
// How long a rank waits at the end for peers that still read its data.
constexpr std::chrono::nanoseconds kFarewell = std::chrono::seconds(10);
// A call that does not block inside NCCL returns within this time.
constexpr auto kReturn = milliseconds(200);

void check_reduction(DType dtype, Reduce op) {
  MT_CHECK(!is_float8(dtype), "a reduction of {}", dtype_name(dtype));
  const bool is_integer = dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
  MT_CHECK(op != Reduce::average || !is_integer, "an average of {}", dtype_name(dtype));
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclApi> api, ncclComm* comm, NcclGroup group,
                   std::unique_ptr<FailureReporter> reporter)
      : api_(std::move(api)),
        group_(std::move(group)),
        reporter_(std::move(reporter)),
        word_(api_->allocate(sizeof(int32_t))),
        comm_(comm),
        watchdog_([this](const std::stop_token& stop) { watch(stop); }) {}

  ~NcclCommunicator() override {
    watchdog_.request_stop();
    watchdog_.join();
    if (aborting_.joinable()) aborting_.join();
    if (!comm_) return;
    if (!family_failure())
      for (const auto& [memory, window] : windows_) api_->deregister_window(comm_, window);
    if (!family_failure() && closes_well())
      api_->destroy(comm_);
    else
      api_->abort(comm_);
  }

  void all_reduce(Span data, Reduce op, const device::LaunchContext& context) override {
    check_reduction(data.dtype, op);
    collective(fmt::format("all_reduce ({}) of {} {}", reduce_name(op), data.count,
                           dtype_name(data.dtype)),
               context,
               [&](ncclComm* comm) { return api_->all_reduce(data, op, comm, context.cuda); });
  }

  void reduce_scatter(ConstSpan in, Span out, Reduce op,
                      const device::LaunchContext& context) override {
    check_reduction(in.dtype, op);
    collective(fmt::format("reduce_scatter ({}) of {} {}", reduce_name(op), in.count,
                           dtype_name(in.dtype)),
               context, [&](ncclComm* comm) {
                 return api_->reduce_scatter(in, out, op, comm, context.cuda);
               });
  }

  void all_gather(ConstSpan in, Span out, const device::LaunchContext& context) override {
    collective(fmt::format("all_gather of {} {}", in.count, dtype_name(in.dtype)), context,
               [&](ncclComm* comm) { return api_->all_gather(in, out, comm, context.cuda); });
  }

  // NCCL does this by messages in one group call, including a message to the rank itself.
  void all_to_all(const std::vector<AllToAllSpans>& tensors,
                  const device::LaunchContext& context) override {
    std::vector<Transfer> transfers;
    const auto add_parts = [&](const void* data, DType dtype, const std::vector<int64_t>& counts,
                               Transfer::Kind kind) {
      auto* at = static_cast<std::byte*>(const_cast<void*>(data));
      for (size_t r = 0; r < counts.size(); ++r) {
        if (counts[r] > 0) transfers.push_back({kind, {at, counts[r], dtype}, int(r)});
        at += counts[r] * dtype_size(dtype);
      }
    };
    for (const auto& [in, sends, out, receives] : tensors) {
      add_parts(in.data, in.dtype, sends, Transfer::Kind::send);
      add_parts(out.data, in.dtype, receives, Transfer::Kind::receive);
    }
    collective(all_to_all_name(tensors), context,
               [&](ncclComm* comm) { return together(transfers, comm, context); });
  }

  void broadcast(Span data, int root, const device::LaunchContext& context) override {
    collective(fmt::format("broadcast of {} {} from {}", data.count, dtype_name(data.dtype), root),
               context,
               [&](ncclComm* comm) { return api_->broadcast(data, root, comm, context.cuda); });
  }

  void exchange(const std::vector<Transfer>& transfers, Clock::time_point,
                const device::LaunchContext& context) override {
    std::set<int> peers;
    for (const Transfer& t : transfers) peers.insert(t.peer);
    call({0, fmt::format("messages with rank {}", fmt::join(peers, ", ")), true}, context,
         [&](ncclComm* comm) { return together(transfers, comm, context); });
  }

  void barrier(const device::LaunchContext& context) override {
    collective("barrier", context, [&](ncclComm* comm) {
      return api_->all_reduce({word_.get(), 1, DType::i32}, Reduce::max, comm, context.cuda);
    });
  }

  // The memory lives at least as long as its registration.
  std::shared_ptr<void> register_memory(int64_t bytes, bool symmetric) override {
    if (!api_->has_windows()) return nullptr;
    api_->use_device();
    const std::shared_ptr<void> memory = api_->allocate_for_window(bytes);
    void* window = nullptr;
    std::unique_lock lock(mutex_);
    if (dead_) throw CommError(*dead_);
    calls_.push_back({{++collectives_, fmt::format("registration of {} bytes", bytes), false},
                      ++number_,
                      nullptr,
                      nullptr,
                      {}});
    const NcclAnswer answer = in_nccl(lock, [&](ncclComm* comm) {
      return api_->register_window(window, memory.get(), bytes, symmetric, comm);
    });
    if (dead_) throw CommError(*dead_);
    const GroupCall about = calls_.back().call;
    if (answer.state != NcclAnswer::State::failed) {
      calls_.pop_back();
      windows_.emplace_back(memory, window);
      return memory;
    }
    lock.unlock();
    throw fail({about, {-1, false, false, answer.text}});
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard one(failing_);
    if (dead()) return;
    reporter_->abort(reason);
    // Another rank may have been the first to give up.
    die(reporter_->explain({}, {-1, false, false, std::string(reason)}));
  }

  Clock::time_point last_start() const override { return last_start_; }

 private:
  struct Call {
    GroupCall call;
    uint64_t number;  // of all calls, messages too
    // Both are null during a capture; `end` is also null until NCCL has enqueued all.
    std::shared_ptr<device::EventBackend> begin, end;
    std::optional<Clock::time_point> started;  // when the watchdog saw that the stream reached it
  };

  struct Found {
    GroupCall about;
    CollectiveFailure failure;
  };

  NcclAnswer together(const std::vector<Transfer>& transfers, ncclComm* comm,
                      const device::LaunchContext& context) {
    NcclAnswer answer = api_->group_start();
    for (const Transfer& t : transfers) {
      if (answer.state == NcclAnswer::State::failed) break;
      answer = t.kind == Transfer::Kind::send ? api_->send(t.data, t.peer, comm, context.cuda)
                                              : api_->receive(t.data, t.peer, comm, context.cuda);
    }
    const NcclAnswer end = api_->group_end(comm);  // a group that was started must be ended
    return answer.state == NcclAnswer::State::failed ? answer : end;
  }

  template <class F>
  void collective(std::string what, const device::LaunchContext& context, const F& run) {
    call({0, std::move(what), false}, context, run);
  }

  // Numbers the call, and counts it if it is a collective.
  GroupCall counted(GroupCall call) {
    if (!call.message) ++collectives_;
    call.number = collectives_;
    return call;
  }

  template <class F>
  void call(GroupCall about, const device::LaunchContext& context, const F& run) {
    std::unique_lock lock(mutex_);
    if (dead_) throw CommError(*dead_);
    last_start_ = Clock::now();
    late_ = context.late;
    // The events of a capture never pass. Its calls are watched at each replay instead.
    if (context.replays) {
      about.number = collectives_ + (about.message ? 0 : 1);
      calls_.push_back({about, number_, nullptr, nullptr, {}});
    } else {
      calls_.push_back({counted(about), ++number_, context.record(), nullptr, {}});
    }
    const NcclAnswer answer = in_nccl(lock, run);
    if (dead_) throw CommError(*dead_);
    if (answer.state == NcclAnswer::State::failed) {
      const Found found{calls_.back().call, {-1, false, false, answer.text}};
      lock.unlock();
      throw fail(found);
    }
    if (!context.replays) {
      calls_.back().end = context.record();
      if (!calls_.back().end) calls_.pop_back();  // captured: nothing has been enqueued
      return;
    }
    calls_.pop_back();
    replayed_calls(*context.replays).push_back(std::move(about));
  }

  // The calls of this group in a graph. The graph is destroyed before the group.
  struct ReplayedCalls : device::ReplayHook {
    explicit ReplayedCalls(NcclCommunicator& g) : group(g) { ++group.graphs_; }
    ~ReplayedCalls() override { --group.graphs_; }
    void before(const device::LaunchContext& c) override { group.begin_replay(calls, c); }
    void after(const device::LaunchContext& c) override { group.end_replay(c); }
    NcclCommunicator& group;
    std::vector<GroupCall> calls;
  };

  // Returns the list of the graph that is being captured.
  std::vector<GroupCall>& replayed_calls(device::ReplayHooks& hooks) {
    for (const auto& hook : hooks)
      if (auto* own = dynamic_cast<ReplayedCalls*>(hook.get()); own && &own->group == this)
        return own->calls;
    const auto own = std::make_shared<ReplayedCalls>(*this);
    hooks.push_back(own);
    return own->calls;
  }

  // A replay is watched as one call, with the number of its first collective. A graph's other
  // work, between its calls, counts for the timeout, too.
  void begin_replay(const std::vector<GroupCall>& calls, const device::LaunchContext& context) {
    const std::lock_guard lock(mutex_);
    if (dead_) throw CommError(*dead_);
    last_start_ = Clock::now();
    late_ = context.late;
    const auto first = std::ranges::find(calls, false, &GroupCall::message);
    GroupCall all = counted(first == calls.end() ? calls.front() : *first);
    all.calls = std::ranges::count(calls, false, &GroupCall::message);
    all.what = fmt::format("a graph with {} calls, the first of them {}", calls.size(),
                           calls.front().what);
    if (all.calls > 0) collectives_ += all.calls - 1;
    calls_.push_back({std::move(all), number_ + 1, context.record(), nullptr, {}});
    number_ += calls.size();
  }
  void end_replay(const device::LaunchContext& context) {
    const std::lock_guard lock(mutex_);
    if (!dead_) calls_.back().end = context.record();
  }

  // NCCL connects peers at their first call, and the host waits for that here. The watchdog checks
  // that it does not take too long. The lock is released during the call: if NCCL blocks, only an
  // abort by the watchdog ends it.
  template <class F>
  NcclAnswer in_nccl(std::unique_lock<std::mutex>& lock, const F& run) {
    ncclComm* const comm = comm_;
    inside_since_ = Clock::now();
    lock.unlock();
    NcclAnswer answer;
    try {
      answer = run(comm);
    } catch (...) {
      lock.lock();
      leave_nccl();
      throw;
    }
    lock.lock();
    while (answer.state == NcclAnswer::State::under_way && !dead_) {
      lock.unlock();
      std::this_thread::sleep_for(microseconds(10));
      lock.lock();
      if (!dead_) answer = api_->state(comm);
    }
    leave_nccl();
    return answer;
  }
  void leave_nccl() {
    inside_since_.reset();
    left_.notify_all();
  }

  void watch(const std::stop_token& stop) {
    std::optional<Found> found;
    const auto found_first = [&](std::string text) {
      return Found{calls_.empty() ? GroupCall{} : calls_.front().call,
                   {-1, false, false, std::move(text)}};
    };
    try {
      api_->use_device();
      std::unique_lock lock(mutex_);
      while (!dead_ && !(found = look()) && !stop.stop_requested()) {
        if (asks_now()) {
          lock.unlock();
          const bool heard = heard_of_failure();
          lock.lock();
          if (heard) found = found_first("");
          if (heard) break;
        }
        wake_.wait_for(lock, stop, kWatch, [] { return false; });
      }
    } catch (const Error& e) {
      const std::lock_guard lock(mutex_);
      found = found_first(e.message());
    }
    if (found) fail(*found);
  }

  // A store that is gone ends the group. One that only does not answer may be in a launcher that is
  // stopped (Ctrl-Z); its connection is then useless, and calls end by their timeout.
  bool heard_of_failure() {
    const auto began = Clock::now();
    try {
      return reporter_->heard_of_failure();
    } catch (const CommError&) {
      if (Clock::now() - began < kSilent) throw;
      asks_ = false;
      return false;
    }
  }

  // Returns the failure of a pending call, if one has failed. The caller holds the lock.
  std::optional<Found> look() {
    // An abort of the family ends its work on the GPU early; such a call has not succeeded.
    while (!calls_.empty() && calls_.front().end && calls_.front().end->ready() &&
           !family_failure())
      calls_.pop_front();
    if (calls_.empty()) return {};
    if (const auto failure = family_failure())
      return Found{calls_.front().call, {-1, false, false, *failure}};
    const auto now = Clock::now();
    const auto too_late = [&](const Call& call) {
      return Found{call.call,
                   {-1, false, true,
                    fmt::format("{} did not end after {:.3g} s", call.call.what,
                                std::chrono::duration<double>(group_.timeout).count())}};
    };
    Call& first = calls_.front();
    if (inside_since_) {  // no other thread may ask NCCL
      if (now - *inside_since_ >= group_.timeout) return too_late(calls_.back());
    } else if (const NcclAnswer answer = api_->state(comm_);
               answer.state == NcclAnswer::State::failed) {
      return Found{first.call, {-1, false, false, answer.text}};
    }
    if (!first.started && first.begin && first.begin->ready()) first.started = asked_ = now;
    if (!first.started || now - *first.started < group_.timeout) return {};
    return too_late(first);
  }

  // Returns whether it is time to ask the store: NCCL does not report that another rank has given
  // up. The caller holds the lock.
  bool asks_now() {
    if (calls_.empty() || !asks_) return false;
    const auto since = calls_.front().started ? calls_.front().started : inside_since_;
    const auto now = Clock::now();
    if (!since || now - std::max(asked_, *since) < std::min(kAsk, group_.timeout / 4)) return false;
    asked_ = now;
    return true;
  }

  // Ends the group and returns the error to throw. The host thread and the watchdog may both detect
  // the failure.
  CommError fail(const Found& found) {
    const std::lock_guard one(failing_);
    {
      const std::lock_guard lock(mutex_);
      if (dead_) return CommError(*dead_);
    }
    reporter_->report(found.about, found.failure);
    const CommError error = reporter_->explain(found.about, found.failure);
    die(error);
    reporter_->abort(error.message());
    return error;
  }

  bool dead() {
    const std::lock_guard lock(mutex_);
    return dead_.has_value();
  }

  // The stream gets the error before NCCL lets it continue. A host thread inside NCCL gets a short
  // time to return by itself. NCCL is aborted during its call only if the call blocks.
  void die(const CommError& error) {
    std::unique_lock lock(mutex_);
    dead_ = error.message();
    // The calls of a family's other members end early, too.
    if (late_ && (group_.family || !calls_.empty()))
      late_->set(std::make_exception_ptr(
          CommError(calls_.empty() ? error.message()
                                   : fmt::format("{}: {}", place(calls_.front()), error.message()),
                    error.hint())));
    if (group_.family) group_.family->aborted(error.message());
    ncclComm* const comm = std::exchange(comm_, nullptr);
    if (inside_since_)
      left_.wait_until(lock, *inside_since_ + kReturn, [&] { return !inside_since_; });
    lock.unlock();
    // NCCL ends its kernels first. Then it waits until no graph holds calls of the group, and it
    // may be this thread that destroys the graphs.
    if (graphs_ > 0)
      aborting_ = std::thread([api = api_, comm] {
        api->use_device();
        api->abort(comm);
      });
    else
      api_->abort(comm);
  }

  std::string place(const Call& call) const {
    // World has appended the ranks to the group's name, after a colon.
    return fmt::format("call {}, {}, of group {} on rank {} ({} of {} in the group)", call.number,
                       call.call.what, group_.name.substr(0, group_.name.find(':')),
                       group_.ranks[size_t(group_.rank)], group_.rank, group_.ranks.size());
  }

  std::optional<std::string> family_failure() const {
    return group_.family ? group_.family->failure() : std::nullopt;
  }

  bool closes_well() {
    const auto deadline = Clock::now() + std::min(kFarewell, group_.timeout);
    const auto finalized = answer_within(deadline, [api = api_, comm = comm_] {
      api->use_device();
      return api->finalize(comm);
    });
    if (!finalized) return false;  // finalize() blocks until the abort
    NcclAnswer answer = *finalized;
    while (answer.state == NcclAnswer::State::under_way && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
      answer = api_->state(comm_);
    }
    return answer.state == NcclAnswer::State::done;
  }

  const std::shared_ptr<NcclApi> api_;
  const NcclGroup group_;
  const std::unique_ptr<FailureReporter> reporter_;
  const std::shared_ptr<void> word_;  // the data of a barrier's all_reduce
  std::vector<std::pair<std::shared_ptr<void>, void*>> windows_;  // memory, NCCL's handle
  uint64_t collectives_ = 0;  // number of collectives that have run so far; the same on every rank
  Clock::time_point last_start_{};

  std::mutex failing_;  // held by the thread that finds out why the group fails; before mutex_
  std::mutex mutex_;    // guards the members below
  ncclComm* comm_;      // null: aborted
  std::optional<Clock::time_point> inside_since_;  // set while the host thread is in NCCL
  std::condition_variable left_;                   // the host thread has returned from NCCL
  uint64_t number_ = 0;
  std::deque<Call> calls_;  // the calls whose end has not been observed
  Clock::time_point asked_{};
  bool asks_ = true;                          // only the watchdog uses it
  std::shared_ptr<device::AsyncError> late_;  // LaunchContext::late of the last call
  std::optional<std::string> dead_;           // why the group cannot be used any more
  std::atomic<int> graphs_{0};                // that hold calls of the group
  std::thread aborting_;                      // set by the thread that holds failing_
  std::condition_variable_any wake_;
  std::jthread watchdog_;  // last: it uses all of the above
};

}  // namespace

void NcclFamily::aborted(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = reason;
}

std::optional<std::string> NcclFamily::failure() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::unique_ptr<Communicator> nccl_communicator(std::shared_ptr<NcclApi> api, ncclComm* comm,
                                                NcclGroup group,
                                                std::unique_ptr<FailureReporter> reporter) {
  return std::make_unique<NcclCommunicator>(std::move(api), comm, std::move(group),
                                            std::move(reporter));
}

}  // namespace mtrain::comm
