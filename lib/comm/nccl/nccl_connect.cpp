#include "comm/nccl/nccl_connect.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/nccl/nccl_helper.h"

namespace mtrain::comm {

namespace {

using Clock = std::chrono::steady_clock;

// A communicator while NCCL connects it. It is aborted if nobody waits for it any more.
class Connecting {
 public:
  explicit Connecting(std::shared_ptr<NcclApi> api) : api_(std::move(api)) {}

  NcclAnswer begin(const std::function<NcclAnswer(NcclApi&, ncclComm*&)>& make) {
    api_->use_device();
    ncclComm* comm = nullptr;
    const NcclAnswer answer = make(*api_, comm);
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

}  // namespace

NcclConnection connect_within(Clock::time_point deadline, const std::shared_ptr<NcclApi>& api,
                              ncclComm* parent,
                              std::function<NcclAnswer(NcclApi&, ncclComm*&)> make,
                              const std::function<bool()>& give_up) {
  const auto connecting = std::make_shared<Connecting>(api);
  const auto begun = answer_within(
      deadline, [connecting, make = std::move(make)] { return connecting->begin(make); }, give_up);
  ncclComm* const comm = connecting->take();
  NcclConnection c{begun.value_or(NcclAnswer{NcclAnswer::State::under_way}), nullptr, !begun};
  ncclComm* const polled = comm ? comm : parent;
  while (begun && polled && c.answer.state == NcclAnswer::State::under_way &&
         Clock::now() < deadline && !(give_up && give_up())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    c.answer = api->state(polled);
  }
  if (c.answer.state == NcclAnswer::State::done)
    c.comm = comm;
  else if (comm)
    api->abort(comm);
  return c;
}

NcclConfig config_of_split(const std::vector<mesh::GroupSplit>& splits, size_t which) {
  return {.most_blocks = most_blocks(splits[which].traffic),
          .shares = std::ranges::any_of(
              splits, [&](const mesh::GroupSplit& s) { return s.parent == int(which); }),
          .copy_engines = splits[which].traffic == GroupTraffic::copies};
}

std::vector<ncclComm*> split_communicators(const std::shared_ptr<NcclApi>& api, ncclComm* world,
                                           const std::vector<mesh::GroupSplit>& splits, int rank,
                                           const NcclSplitting& options) {
  std::vector<ncclComm*> made{world};
  FailureReporter& reporter = *options.reporter;
  const auto fail = [&](const NcclConnection& c, ncclComm* parent) -> CommError {
    const size_t i = made.size();
    const bool heard = options.job_failed() || reporter.heard_of_failure();
    const bool failed = c.answer.state == NcclAnswer::State::failed;
    const GroupCall call{i, fmt::format("split {}", i), false};
    const CollectiveFailure failure{-1, false, !failed && !heard, c.answer.text};
    reporter.report(call, failure);
    const CommError error = reporter.explain(call, failure);
    // The members of a family come after their owner.
    for (size_t m = made.size(); m-- > 0;)
      if (made[m] && !(c.inside && made[m] == parent)) api->abort(made[m]);
    const std::string& name = splits[i].name;
    return CommError(
        fmt::format("{} ({} of {} splits of the job's ranks): {}",
                    splits[i].ranks.empty() ? "groups of other ranks" : "group " + name, i,
                    splits.size() - 1, error.message()),
        error.hint());
  };
  while (made.size() < splits.size()) {
    const mesh::GroupSplit& s = splits[made.size()];
    ncclComm* const parent = s.parent < 0 ? world : made[size_t(s.parent)];
    if (!parent) {  // this rank is not in the groups that are split
      made.push_back(nullptr);
      continue;
    }
    const auto own = std::ranges::find(s.ranks, rank);
    const int color = s.ranks.empty() ? NcclApi::kNoColor : s.ranks.front();
    const int key = int(own - s.ranks.begin());
    const NcclConnection c = connect_within(
        Clock::now() + options.timeout, api, parent,
        [parent, color, key, config = config_of_split(splits, made.size())](NcclApi& nccl,
                                                                            ncclComm*& comm) {
          return nccl.split(comm, parent, color, key, config);
        },
        [&] { return options.job_failed() || reporter.heard_of_failure(); });
    if (c.answer.state != NcclAnswer::State::done) throw fail(c, parent);
    made.push_back(c.comm);
  }
  return made;
}

}  // namespace mtrain::comm
