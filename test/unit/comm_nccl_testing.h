// A stand-in for NCCL, and ranks over it.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_transport.h"
#include "store/store.h"

namespace nccl_testing {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using State = NcclAnswer::State;
using Log = std::vector<std::string>;

// Whether calls block until they are done or aborted, as the library's do. Otherwise they return at
// once, and state() is polled. Each test runs both ways.
inline bool blocking = false;

class FakeNccl : public NcclApi {
 public:
  // Whether the stream arrives at calls, and whether calls end.
  std::atomic<bool> reached{true}, ends{true};
  std::atomic<int> polls{0};  // how often state() still says "in progress"
  std::atomic<bool> fails{false};
  std::atomic<bool> captures{false};  // a capture is under way
  std::atomic<bool> splits{false};    // the library is new enough to split
  std::atomic<bool> windows{false};   // and to register windows
  // The split, from 1, that fails, and the one that waits for a rank which does not come.
  std::atomic<int> fails_at{0}, stuck_at{0};
  std::atomic<bool> never_ready{false}, aborted{false};
  // Graphs that hold calls: abort() ends calls, and then waits until there are none.
  std::atomic<int> graphs{0};
  std::atomic<bool> closed{false};
  std::atomic<int> inside{0};  // threads in a call that blocks

  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  void use_device() override {}
  std::string make_id() override {
    note("make_id");
    return "the id";
  }
  NcclAnswer init(ncclComm*& comm, const std::string& id, int rank, int ranks,
                  const NcclConfig& config) override {
    note(fmt::format("init {} {}/{}{}", id, rank, ranks, text_of(config)));
    const NcclAnswer answer = end();
    comm = next_comm();
    return answer;
  }
  bool can_split() const override { return splits; }
  NcclAnswer split(ncclComm*& comm, ncclComm* parent, int color, int key,
                   const NcclConfig& config) override {
    note(fmt::format("split{} {} {}{}", number_of(parent),
                     color == kNoColor ? "without color" : fmt::format("color {}", color), key,
                     text_of(config)));
    const int which = ++made_;
    if (which == fails_at) return {State::failed, "a cable is out"};
    if (which == stuck_at) never_ready = true;
    const NcclAnswer answer = end();
    comm = color == kNoColor ? nullptr : next_comm();
    return answer;
  }
  NcclAnswer state(ncclComm*) override {
    if (fails) return {State::failed, "a cable is out"};
    if (never_ready) return {State::under_way};
    int left = polls;
    while (left > 0 && !polls.compare_exchange_weak(left, left - 1)) {
    }
    return {left > 0 ? State::under_way : State::done};
  }
  NcclAnswer finalize(ncclComm* comm) override {
    note("finalize" + number_of(comm));
    return end();
  }
  void destroy(ncclComm* comm) noexcept override { note("destroy" + number_of(comm)); }
  void abort(ncclComm* comm) noexcept override {
    note("abort" + number_of(comm));
    aborted = true;
    while (graphs > 0) std::this_thread::sleep_for(1ms);
    closed = true;
  }
  NcclAnswer group_start() override { return note("group_start"); }
  NcclAnswer group_end(ncclComm*) override {
    note("group_end");
    return end();
  }
  NcclAnswer all_reduce(Span data, Reduce, ncclComm*, CUstream_st*) override {
    note(fmt::format("all_reduce {} {}", data.count, dtype_name(data.dtype)));
    return end();
  }
  NcclAnswer reduce_scatter(ConstSpan, Span out, Reduce, ncclComm*, CUstream_st*) override {
    return note(fmt::format("reduce_scatter {}", out.count));
  }
  NcclAnswer all_gather(ConstSpan in, Span, ncclComm*, CUstream_st*) override {
    return note(fmt::format("all_gather {}", in.count));
  }
  NcclAnswer broadcast(Span data, int root, ncclComm*, CUstream_st*) override {
    return note(fmt::format("broadcast {} from {}", data.count, root));
  }
  NcclAnswer send(ConstSpan data, int to, ncclComm*, CUstream_st*) override {
    return note(fmt::format("send {} at {} to {}", data.count, place(data.data), to));
  }
  NcclAnswer receive(Span data, int from, ncclComm*, CUstream_st*) override {
    return note(fmt::format("receive {} at {} from {}", data.count, place(data.data), from));
  }
  // Events come in pairs: before and after a call.
  std::shared_ptr<device::EventBackend> record() {
    if (captures) return nullptr;
    struct Event : device::EventBackend {
      explicit Event(const std::atomic<bool>& by) : flag(by), passed(by) {}
      bool ready() const override { return passed || flag; }
      void wait() const override {}
      const std::atomic<bool>& flag;
      const bool passed;  // whatever the flag becomes later
    };
    return std::make_shared<Event>(recorded_++ % 2 ? ends : reached);
  }
  std::shared_ptr<void> allocate(int64_t) override { return std::make_shared<int64_t>(); }

  bool has_windows() const override { return windows; }
  std::shared_ptr<void> allocate_for_window(int64_t bytes) override {
    note(fmt::format("allocate {}", bytes));
    return {new char[size_t(bytes)], [this](void* p) {
              note("free");
              delete[] static_cast<char*>(p);
            }};
  }
  NcclAnswer register_window(void*& window, void* at, int64_t bytes, bool symmetric,
                             ncclComm*) override {
    note(fmt::format("register {}{}", bytes, symmetric ? " symmetric" : ""));
    window = at;
    return end();
  }
  void deregister_window(ncclComm*, void*) noexcept override { note("deregister"); }

  float memory[64];

 private:
  // The end of a call that may take long.
  NcclAnswer end() {
    if (!blocking) return state(nullptr);
    ++inside;
    NcclAnswer answer;
    while ((answer = state(nullptr)).state == State::under_way && !aborted)
      std::this_thread::sleep_for(1ms);
    --inside;
    return answer.state == State::under_way ? NcclAnswer{State::failed, "aborted"} : answer;
  }
  NcclAnswer note(std::string what) {
    const std::lock_guard lock(mutex_);
    log_.push_back(std::move(what));
    return {};
  }
  // Communicators are numbered from 0, in the order in which they are made.
  ncclComm* next_comm() {
    const std::lock_guard lock(mutex_);
    return reinterpret_cast<ncclComm*>(&comms_.at(size_t(comms_made_++)));
  }
  std::string number_of(ncclComm* comm) const {
    return splits ? fmt::format(" {}", reinterpret_cast<const char*>(comm) - comms_.data()) : "";
  }
  static std::string text_of(const NcclConfig& config) {
    return fmt::format("{}{}",
                       config.most_blocks > 0 ? fmt::format(" on {}", config.most_blocks) : "",
                       config.shares         ? " shares"
                       : config.copy_engines ? " by copy engines"
                                             : "");
  }
  int64_t place(const void* data) const { return static_cast<const float*>(data) - memory; }

  std::mutex mutex_;
  std::vector<std::string> log_;
  std::atomic<int> recorded_{0};
  std::atomic<int> made_{0};  // splits
  std::array<char, 64> comms_{};
  int comms_made_ = 0;
};

// A rank with the objects that its process would have.
struct Rank {
  std::shared_ptr<FakeNccl> nccl = std::make_shared<FakeNccl>();
  std::shared_ptr<Communicator> group;
  device::LaunchContext context{.late = std::make_shared<device::AsyncError>(),
                                .record = [nccl = nccl] { return nccl->record(); }};

  Span data(int first, int64_t count) const { return {nccl->memory + first, count, DType::f32}; }
  std::string late() const {
    try {
      context.late->rethrow();
    } catch (const CommError& e) {
      return e.message();
    }
    return "";
  }
  // Waits for the failure that the stream would throw.
  std::string await_late() const {
    const auto deadline = Clock::now() + 10s;
    while (late().empty() && Clock::now() < deadline) std::this_thread::sleep_for(5ms);
    return late();
  }
};

// Lets the given ranks of a group of `n` meet, and returns each rank's error.
inline std::vector<std::string> meet(std::vector<Rank>& ranks, int n,
                                     std::chrono::nanoseconds timeout, const StoreServer& server,
                                     int first = 0, Traffic traffic = Traffic::bulk) {
  std::vector<std::string> messages(ranks.size());
  std::vector<std::thread> threads;
  std::vector<int> all;
  for (int r = 0; r < n; ++r) all.push_back(r + 10);
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        const auto transport = nccl_transport(ranks[i].nccl, {server.address(), timeout});
        ranks[i].group = transport->connect("dp:10,11", all, first + int(i), traffic);
      } catch (const Error& e) {
        messages[i] = e.message();
      }
    });
  for (auto& t : threads) t.join();
  return messages;
}

struct FakeGroup {
  explicit FakeGroup(int n, std::chrono::nanoseconds timeout = 10s) : ranks(size_t(n)) {
    for (const auto& m : meet(ranks, n, timeout, server)) REQUIRE(m.empty());
  }
  StoreServer server{{"127.0.0.1", 0, Token::random()}};
  std::vector<Rank> ranks;
};

inline bool eventually(const std::function<bool()>& true_now) {
  const auto deadline = Clock::now() + 10s;
  while (!true_now() && Clock::now() < deadline) std::this_thread::sleep_for(5ms);
  return true_now();
}

inline void all_reduce(Rank& r, int64_t count = 4) {
  r.group->all_reduce(r.data(0, count), Reduce::sum, r.context);
}

}  // namespace nccl_testing
