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

namespace mtrain::comm {

namespace {

using Clock = Communicator::Clock;
using State = NcclAnswer::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kWatch = milliseconds(10);  // the watchdog looks at the calls under way this often
// The watchdog asks the store, which serves all ranks, this often. A healthy call ends before the
// first question.
constexpr std::chrono::nanoseconds kAsk = milliseconds(250);
// How long a rank waits at the end for peers that still read its data.
constexpr std::chrono::nanoseconds kFarewell = std::chrono::seconds(10);

const char* name(Reduce op) {
  return op == Reduce::sum ? "sum" : op == Reduce::max ? "maximum" : "average";
}

void check_reduction(DType dtype, Reduce op) {
  const bool whole = dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
  MT_CHECK(op != Reduce::average || !whole, "an average of {}", dtype_name(dtype));
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
    if (!comm_) return;
    if (closes_well())
      api_->destroy(comm_);
    else
      api_->abort(comm_);
  }

  void all_reduce(Span data, Reduce op, const device::LaunchContext& context) override {
    check_reduction(data.dtype, op);
    collective(
        fmt::format("all_reduce ({}) of {} {}", name(op), data.count, dtype_name(data.dtype)),
        context, [&] { return api_->all_reduce(data, op, comm_, context.cuda); });
  }

  void reduce_scatter(ConstSpan in, Span out, Reduce op,
                      const device::LaunchContext& context) override {
    check_reduction(in.dtype, op);
    collective(
        fmt::format("reduce_scatter ({}) of {} {}", name(op), in.count, dtype_name(in.dtype)),
        context, [&] { return api_->reduce_scatter(in, out, op, comm_, context.cuda); });
  }

  void all_gather(ConstSpan in, Span out, const device::LaunchContext& context) override {
    collective(fmt::format("all_gather of {} {}", in.count, dtype_name(in.dtype)), context,
               [&] { return api_->all_gather(in, out, comm_, context.cuda); });
  }

  // NCCL does this by messages in one group call, including a message to the rank itself.
  void all_to_all(ConstSpan in, const std::vector<int64_t>& sends, Span out,
                  const std::vector<int64_t>& receives,
                  const device::LaunchContext& context) override {
    std::vector<Transfer> transfers;
    const auto add_parts = [&](const void* data, const std::vector<int64_t>& counts,
                               Transfer::Kind kind) {
      auto* at = static_cast<std::byte*>(const_cast<void*>(data));
      for (size_t r = 0; r < counts.size(); ++r) {
        if (counts[r] > 0) transfers.push_back({kind, {at, counts[r], in.dtype}, int(r)});
        at += counts[r] * dtype_size(in.dtype);
      }
    };
    add_parts(in.data, sends, Transfer::Kind::send);
    add_parts(out.data, receives, Transfer::Kind::receive);
    collective(fmt::format("all_to_all of {}", dtype_name(in.dtype)), context,
               [&] { return together(transfers, context); });
  }

  void broadcast(Span data, int root, const device::LaunchContext& context) override {
    collective(fmt::format("broadcast of {} {} from {}", data.count, dtype_name(data.dtype), root),
               context, [&] { return api_->broadcast(data, root, comm_, context.cuda); });
  }

  void exchange(const std::vector<Transfer>& transfers, Clock::time_point,
                const device::LaunchContext& context) override {
    std::set<int> peers;
    for (const Transfer& t : transfers) peers.insert(t.peer);
    call({collectives_, fmt::format("messages with rank {}", fmt::join(peers, ", ")), true},
         context, [&] { return together(transfers, context); });
  }

  void barrier(const device::LaunchContext& context) override {
    collective("barrier", context, [&] {
      return api_->all_reduce({word_.get(), 1, DType::i32}, Reduce::max, comm_, context.cuda);
    });
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
    uint64_t number;                                   // of all calls, messages too
    std::unique_ptr<device::EventBackend> begin, end;  // `end` is null until NCCL has enqueued all
    std::optional<Clock::time_point> started;  // when the watchdog saw that the stream reached it
  };

  NcclAnswer together(const std::vector<Transfer>& transfers,
                      const device::LaunchContext& context) {
    NcclAnswer answer = api_->group_start();
    for (const Transfer& t : transfers) {
      if (answer.state == State::failed) break;
      answer = t.kind == Transfer::Kind::send ? api_->send(t.data, t.peer, comm_, context.cuda)
                                              : api_->receive(t.data, t.peer, comm_, context.cuda);
    }
    const NcclAnswer end = api_->group_end(comm_);  // a group that was started must be ended
    return answer.state == State::failed ? answer : end;
  }

  template <class F>
  void collective(std::string what, const device::LaunchContext& context, const F& run) {
    call({++collectives_, std::move(what), false}, context, run);
  }

  template <class F>
  void call(GroupCall about, const device::LaunchContext& context, const F& run) {
    std::unique_lock lock(mutex_);
    if (dead_) throw CommError(*dead_);
    last_start_ = Clock::now();
    late_ = context.late;
    calls_.push_back({std::move(about), ++number_, api_->record(context.cuda), nullptr, {}});
    NcclAnswer answer = run();
    while (answer.state == State::under_way) {
      // NCCL connects peers at their first call. The host waits for that here; the watchdog checks
      // that it does not take too long.
      if (!calls_.back().started) calls_.back().started = Clock::now();
      lock.unlock();
      std::this_thread::sleep_for(microseconds(10));
      lock.lock();
      if (dead_) throw CommError(*dead_);
      answer = api_->state(comm_);
    }
    if (answer.state == State::failed) {
      lock.unlock();
      throw fail({-1, false, false, answer.text});
    }
    calls_.back().started.reset();
    calls_.back().end = api_->record(context.cuda);
  }

  void watch(const std::stop_token& stop) {
    std::optional<CollectiveFailure> failure;
    try {
      api_->use_device();
      std::unique_lock lock(mutex_);
      while (!dead_ && !(failure = look()) && !stop.stop_requested()) {
        if (asks_now()) {
          lock.unlock();
          if (reporter_->heard_of_failure()) failure = {-1, false, false, ""};
          lock.lock();
          if (failure) break;
        }
        wake_.wait_for(lock, stop, kWatch, [] { return false; });
      }
    } catch (const Error& e) {
      failure = {-1, false, false, e.message()};
    }
    if (failure) fail(*failure);
  }

  // Returns the failure of the first call under way, if it has failed. The caller holds the lock.
  std::optional<CollectiveFailure> look() {
    while (!calls_.empty() && calls_.front().end && calls_.front().end->ready()) calls_.pop_front();
    if (calls_.empty()) return {};
    const NcclAnswer answer = api_->state(comm_);
    if (answer.state == State::failed) return CollectiveFailure{-1, false, false, answer.text};
    Call& first = calls_.front();
    if (!first.started && first.begin->ready()) first.started = asked_ = Clock::now();
    if (!first.started || Clock::now() - *first.started < group_.timeout) return {};
    return CollectiveFailure{-1, false, true,
                             fmt::format("{} did not end after {:.3g} s", first.call.what,
                                         std::chrono::duration<double>(group_.timeout).count())};
  }

  // Returns whether it is time to ask the store: NCCL does not tell a rank that another one has
  // given up. The caller holds the lock.
  bool asks_now() {
    if (calls_.empty() || !calls_.front().started) return false;
    const auto now = Clock::now();
    if (now - std::max(asked_, *calls_.front().started) < std::min(kAsk, group_.timeout / 4))
      return false;
    asked_ = now;
    return true;
  }

  // Ends the group and returns the error to throw. The host thread and the watchdog may both find
  // that it has failed.
  CommError fail(const CollectiveFailure& failure) {
    const std::lock_guard one(failing_);
    GroupCall about;
    {
      const std::lock_guard lock(mutex_);
      if (dead_) return CommError(*dead_);
      if (!calls_.empty()) about = calls_.front().call;
    }
    reporter_->report(about, failure);
    const CommError error = reporter_->explain(about, failure);
    die(error);
    reporter_->abort(error.message());
    return error;
  }

  bool dead() {
    const std::lock_guard lock(mutex_);
    return dead_.has_value();
  }

  // The stream gets the error before NCCL lets it go on.
  void die(const CommError& error) {
    const std::lock_guard lock(mutex_);
    dead_ = error.message();
    if (late_ && !calls_.empty())
      late_->set(std::make_exception_ptr(
          CommError(fmt::format("{}: {}", place(calls_.front()), error.message()), error.hint())));
    api_->abort(std::exchange(comm_, nullptr));
  }

  std::string place(const Call& call) const {
    // World has appended the ranks to the group's name, behind a colon.
    return fmt::format("call {}, {}, of group {} on rank {} ({} of {} in the group)", call.number,
                       call.call.what, group_.name.substr(0, group_.name.find(':')),
                       group_.ranks[size_t(group_.rank)], group_.rank, group_.ranks.size());
  }

  bool closes_well() {
    const auto deadline = Clock::now() + std::min(kFarewell, group_.timeout);
    NcclAnswer answer = api_->finalize(comm_);
    while (answer.state == State::under_way && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
      answer = api_->state(comm_);
    }
    return answer.state == State::done;
  }

  const std::shared_ptr<NcclApi> api_;
  const NcclGroup group_;
  const std::unique_ptr<FailureReporter> reporter_;
  const std::shared_ptr<void> word_;  // the data of a barrier's all_reduce
  uint64_t collectives_ = 0;          // number of collectives so far; the same on every rank
  Clock::time_point last_start_{};

  std::mutex failing_;  // held by the thread that finds out why the group fails; before mutex_
  std::mutex mutex_;    // guards the members below
  ncclComm* comm_;      // null: aborted
  uint64_t number_ = 0;
  std::deque<Call> calls_;  // the calls that have not been seen to end
  Clock::time_point asked_{};
  std::shared_ptr<device::AsyncError> late_;  // LaunchContext::late of the last call
  std::optional<std::string> dead_;           // why the group cannot be used any more
  std::condition_variable_any wake_;
  std::jthread watchdog_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Communicator> nccl_communicator(std::shared_ptr<NcclApi> api, ncclComm* comm,
                                                NcclGroup group,
                                                std::unique_ptr<FailureReporter> reporter) {
  return std::make_unique<NcclCommunicator>(std::move(api), comm, std::move(group),
                                            std::move(reporter));
}

}  // namespace mtrain::comm
