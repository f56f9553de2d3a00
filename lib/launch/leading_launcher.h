// The leader of a job whose hosts act together (round_leader.h), beside the store that this
// launcher serves.
#pragma once
#include <atomic>
#include <optional>
#include <thread>

#include "launch/round_leader.h"
#include "store/store.h"

namespace mtrain::launch {

// A thread reads the launchers' notes and announces what follows.
class LeadingLauncher {
 public:
  // `before`: of the job of a leader that is gone, as RoundLeader takes it.
  LeadingLauncher(LeaderOptions options, store::StoreServer& server,
                  const std::optional<RoundFacts>& before = {});
  ~LeadingLauncher();
  LeadingLauncher(const LeadingLauncher&) = delete;
  LeadingLauncher& operator=(const LeadingLauncher&) = delete;

  // Waits, for a bounded time, until the other launchers have the last news and have left.
  void await_others(const std::string& own_id);

 private:
  void run();
  void announce(const LauncherNews& news);

  RoundLeader leader_;
  store::StoreServer& server_;
  const bool continues_;  // the first news are about the leader before: all hosts print them
  int64_t announced_ = 0, begun_ = -1;  // the last news; the last round with a `run`
  std::atomic<bool> ends_{false};
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace mtrain::launch
