#include "comm/nccl/nccl_transport.h"

#include <algorithm>
#include <thread>

#include <fmt/ranges.h>

#include "base/error.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_connect.h"
#include "store/store.h"

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
  Meeting(store::Store& store, const NcclOptions& options, std::string group, int rank, int ranks)
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
    store::Store waiting(options_.store, timeout);
    try {
      return waiting.get(key("id"));
    } catch (const CommError&) {
      const std::vector<int> late = missing();
      if (late.empty() || !store_.failure().empty()) throw;
      return not_connected(late);
    }
  }

  store::Store& store_;
  const NcclOptions& options_;
  const std::string group_;
  const int rank_, ranks_;
};

class NcclTransport : public Transport {
 public:
  NcclTransport(std::shared_ptr<NcclApi> api, const NcclOptions& options)
      : api_(std::move(api)),
        options_(options),
        // A failing rank must not wait long for a store that is gone.
        store_(std::make_shared<store::Store>(
            options.store, std::chrono::duration_cast<milliseconds>(options.timeout),
            std::chrono::seconds(2))) {}

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic traffic) override {
    api_->use_device();
    return communicator({.name = name, .ranks = ranks, .rank = rank},
                        connect_by_id(name, rank, int(ranks.size()),
                                      {.most_blocks = most_blocks(traffic),
                                       .copy_engines = traffic == Traffic::copies}));
  }

  std::vector<std::shared_ptr<Communicator>> connect_all(
      const std::vector<mesh::GroupSplit>& splits) override {
    if (!api_->can_split() || splits.size() < 2) return {};
    api_->use_device();
    const mesh::GroupSplit& all = splits[0];
    const int n = int(all.ranks.size());
    MT_CHECK(options_.rank >= 0 && options_.rank < n, "rank {} of {}", options_.rank, n);
    ncclComm* const world = connect_by_id(all.name, options_.rank, n, config_of_split(splits, 0));
    FailureReporter reporter(store_, "splits of " + all.name, options_.rank, n, options_.timeout);
    return communicators(
        splits, split_communicators(api_, world, splits, options_.rank,
                                    {.timeout = options_.timeout,
                                     .reporter = &reporter,
                                     .job_failed = [this] { return !store_->failure().empty(); }}));
  }

 private:
  ncclComm* connect_by_id(const std::string& name, int rank, int ranks, const NcclConfig& config) {
    try {
      const std::string id = Meeting(*store_, options_, name, rank, ranks).id(*api_);
      return init(id, rank, ranks, config);
    } catch (const CommError& e) {
      throw CommError(fmt::format("group {}: {}", name, e.message()), e.hint());
    }
  }

  ncclComm* init(const std::string& id, int rank, int ranks, const NcclConfig& config) {
    using State = NcclAnswer::State;
    const NcclConnection c =
        connect_within(Clock::now() + options_.timeout, api_, nullptr,
                       [id, rank, ranks, config](NcclApi& nccl, ncclComm*& comm) {
                         return nccl.init(comm, id, rank, ranks, config);
                       });
    if (c.answer.state == State::done) return c.comm;
    if (c.answer.state == State::failed)
      throw CommError("cannot connect its ranks: " + c.answer.text,
                      "NCCL_DEBUG=INFO prints more, NCCL_SOCKET_IFNAME names the network");
    throw CommError(
        fmt::format("all ranks have arrived, but NCCL has not connected them after {:.3g} s",
                    std::chrono::duration<double>(options_.timeout).count()),
        "a rank has ended, or a firewall is between the hosts; NCCL_DEBUG=INFO prints more");
  }

  // Returns this rank's ends of the groups. Those that share resources are a family, whose owner
  // lives as long as they do.
  std::vector<std::shared_ptr<Communicator>> communicators(
      const std::vector<mesh::GroupSplit>& splits, const std::vector<ncclComm*>& comms) {
    std::vector<std::shared_ptr<Communicator>> ends;
    std::vector<std::shared_ptr<NcclFamily>> families;
    for (size_t i = 0; i < splits.size(); ++i) {
      const mesh::GroupSplit& s = splits[i];
      const bool member = s.parent >= 0;
      families.push_back(member                              ? families[size_t(s.parent)]
                         : config_of_split(splits, i).shares ? std::make_shared<NcclFamily>()
                                                             : nullptr);
      if (!comms[i]) {
        ends.push_back(nullptr);
        continue;
      }
      const auto own = std::ranges::find(s.ranks, options_.rank);
      ends.push_back(communicator({.name = s.name,
                                   .ranks = s.ranks,
                                   .rank = int(own - s.ranks.begin()),
                                   .family = families[i],
                                   .owner = member ? ends[size_t(s.parent)] : nullptr},
                                  comms[i]));
    }
    return ends;
  }

  std::shared_ptr<Communicator> communicator(NcclGroup group, ncclComm* comm) {
    group.timeout = options_.timeout;
    auto reporter = std::make_unique<FailureReporter>(store_, group.name, group.rank,
                                                      int(group.ranks.size()), options_.timeout);
    return nccl_communicator(api_, comm, std::move(group), std::move(reporter));
  }

  const std::shared_ptr<NcclApi> api_;
  const NcclOptions options_;
  const std::shared_ptr<store::Store> store_;
};

}  // namespace

std::shared_ptr<Transport> nccl_transport(std::shared_ptr<NcclApi> api,
                                          const NcclOptions& options) {
  return std::make_shared<NcclTransport>(std::move(api), options);
}

}  // namespace mtrain::comm
