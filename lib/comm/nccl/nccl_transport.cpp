#include "comm/nccl/nccl_transport.h"

#include <mutex>
#include <thread>

#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_helper.h"
#include "comm/store.h"

namespace mtrain::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The first byte of the message that the first rank stores for the others.
constexpr char kId = '+', kMissing = '-';

// The rendezvous of one group's ranks.
class Meeting {
 public:
  // `store` answers within a short time or throws.
  Meeting(Store& store, const NcclOptions& options, std::string group, int rank, int ranks)
      : store_(store), options_(options), group_(std::move(group)), rank_(rank), ranks_(ranks) {}

  // Returns NCCL's id of the group when all ranks have arrived.
  std::string id(NcclApi& api) {
    store_.add(arrived(rank_), 1);
    const std::string answer = rank_ == 0 ? invite(api) : await_invitation();
    if (answer[0] == kMissing) throw CommError(answer.substr(1), "a rank has ended, or is stuck");
    return answer.substr(1);
  }

 private:
  std::string key(const std::string& what) const { return fmt::format("nccl/{}/{}", group_, what); }
  std::string arrived(int rank) const { return key(fmt::format("arrived/{}", rank)); }

  std::vector<int> missing() {
    std::vector<int> ranks;
    for (int r = 0; r < ranks_; ++r)
      if (store_.add(arrived(r), 0) == 0) ranks.push_back(r);
    return ranks;
  }
  std::string not_connected(const std::vector<int>& ranks) const {
    return kMissing + fmt::format("rank {} of the group did not connect after {:.3g} s",
                                  fmt::join(ranks, ", "),
                                  std::chrono::duration<double>(options_.timeout).count());
  }

  // Waits for all ranks and publishes the id. Only the first rank does so; otherwise the server
  // would get ranks x ranks requests.
  std::string invite(NcclApi& api) {
    const auto deadline = Clock::now() + options_.timeout;
    std::vector<int> late = missing();
    while (!late.empty() && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(std::max(10, ranks_ / 10)));
      if (const std::string failure = store_.failure(); !failure.empty()) throw CommError(failure);
      std::erase_if(late, [&](int r) { return store_.add(arrived(r), 0) > 0; });
    }
    const std::string answer = late.empty() ? kId + api.make_id() : not_connected(late);
    store_.set(key("id"), answer);
    return answer;
  }

  std::string await_invitation() {
    const auto timeout = std::chrono::duration_cast<milliseconds>(options_.timeout);
    // The wait gets a connection of its own, since a connection cannot be used after a timeout.
    Store waiting(options_.store, timeout);
    try {
      return waiting.get(key("id"));
    } catch (const CommError&) {
      const std::vector<int> late = missing();
      if (late.empty() || !store_.failure().empty()) throw;
      return not_connected(late);
    }
  }

  Store& store_;
  const NcclOptions& options_;
  const std::string group_;
  const int rank_, ranks_;
};

// A communicator while NCCL connects it. It is aborted if nobody waits for it any more.
class Connecting {
 public:
  explicit Connecting(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}

  // NCCL may block here forever. Before it returns, there is no communicator to abort.
  NcclAnswer begin(const std::string& id, int rank, int ranks, int max_ctas) {
    api_->use_device();
    ncclComm* comm = nullptr;
    const NcclAnswer answer = api_->init(comm, id, rank, ranks, max_ctas);
    const std::lock_guard lock(mutex_);
    if (taken_ && comm)
      api_->abort(comm);
    else
      comm_ = comm;
    return answer;
  }
  // Called once: returns the communicator, or null if NCCL has returned none yet.
  ncclComm* take() {
    const std::lock_guard lock(mutex_);
    taken_ = true;
    return comm_;
  }

 private:
  const std::shared_ptr<NcclApi> api_;
  std::mutex mutex_;
  bool taken_ = false;
  ncclComm* comm_ = nullptr;
};

// Returns how many blocks, each on a multiprocessor of its own, a call may take; 0: NCCL decides. A
// receive that is enqueued before its message spins on the GPU until the message arrives. Four
// blocks still carry a message at a good part of a link's rate.
int max_ctas(Traffic traffic) {
  switch (traffic) {
    case Traffic::bulk: return 0;
    case Traffic::messages: return 4;
    case Traffic::scalars: return 1;
  }
  throw BugError("a kind of traffic without a number of blocks");
}

class NcclTransport : public Transport {
 public:
  NcclTransport(std::shared_ptr<NcclApi> api, const NcclOptions& options)
      : api_(std::move(api)),
        options_(options),
        // A failing rank must not wait long for a store that is gone.
        store_(std::make_shared<Store>(options.store,
                                       std::chrono::duration_cast<milliseconds>(options.timeout),
                                       std::chrono::seconds(2))) {}

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic traffic) override {
    api_->use_device();
    const int n = int(ranks.size());
    ncclComm* comm = nullptr;
    try {
      comm = init(Meeting(*store_, options_, name, rank, n).id(*api_), rank, n, max_ctas(traffic));
    } catch (const CommError& e) {
      throw CommError(fmt::format("group {}: {}", name, e.message()), e.hint());
    }
    return nccl_communicator(
        api_, comm, {.name = name, .ranks = ranks, .rank = rank, .timeout = options_.timeout},
        std::make_unique<FailureReporter>(store_, name, rank, n, options_.timeout));
  }

 private:
  ncclComm* init(const std::string& id, int rank, int ranks, int ctas) {
    using State = NcclAnswer::State;
    const auto deadline = Clock::now() + options_.timeout;
    const auto connecting = std::make_shared<Connecting>(api_);
    const auto begun = answer_within(deadline, [connecting, id, rank, ranks, ctas] {
      return connecting->begin(id, rank, ranks, ctas);
    });
    ncclComm* const comm = connecting->take();
    NcclAnswer answer = begun.value_or(NcclAnswer{State::under_way});
    while (comm && answer.state == State::under_way && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
      answer = api_->state(comm);
    }
    if (answer.state == State::done) return comm;
    if (comm) api_->abort(comm);
    if (answer.state == State::failed)
      throw CommError("cannot connect its ranks: " + answer.text,
                      "NCCL_DEBUG=INFO prints more, NCCL_SOCKET_IFNAME names the network");
    throw CommError(
        fmt::format("all ranks have arrived, but NCCL has not connected them after {:.3g} s",
                    std::chrono::duration<double>(options_.timeout).count()),
        "a rank has ended, or a firewall is between the hosts; NCCL_DEBUG=INFO prints more");
  }

  const std::shared_ptr<NcclApi> api_;
  const NcclOptions options_;
  const std::shared_ptr<Store> store_;
};

}  // namespace

std::shared_ptr<Transport> nccl_transport(std::shared_ptr<NcclApi> api,
                                          const NcclOptions& options) {
  return std::make_shared<NcclTransport>(std::move(api), options);
}

}  // namespace mtrain::comm
