// Changes of a round's hosts that nothing has forced. They are made at a new checkpoint, where
// nothing is lost.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/round_members.h"

namespace mtrain::launch {

// Hosts that join, and hosts with a slow rank that spare ones replace.
class PlannedChanges {
 public:
  struct Round {
    const LeaderOptions& options;
    const std::vector<RoundMember>& members;
    int world = 0;                 // its ranks
    const std::vector<int>& slow;  // ranks that their launchers have named
    // The hosts that are here, without those that are left out.
    std::function<std::vector<LauncherNote>()> hosts;
  };
  void begin_round();
  // Returns texts to print.
  std::vector<std::string> look(const Round& round);
  bool are_due() const { return due_; }  // the round ends now

  // Whether the host is slow: it is left out while the others suffice.
  bool leaves_out(const std::string& id) const { return slow_.contains(id); }
  // Returns false if no host is left out.
  bool use_slow_hosts();

 private:
  void look_for_stragglers(const Round& round);
  void look_for_joiners(const Round& round);
  void replace_host(const Round& round, const RoundMember& slow, int rank);

  std::vector<std::string> texts_;
  bool due_ = false;
  std::optional<int64_t> joins_after_;     // a host waits for a checkpoint that is newer
  std::set<std::string> slow_;             // ids of hosts
  std::set<int> slow_ranks_;               // of the round, that were reported
  std::optional<int64_t> replaced_after_;  // a slow host ends the round at a newer checkpoint
};

}  // namespace mtrain::launch
