// Finds the launcher that leads a job whose launchers elect one, or makes this launcher the leader.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "launch/agent.h"
#include "launch/attempt.h"
#include "launch/etcd_election.h"

namespace mtrain::launch {

class LeaderSearch {
 public:
  LeaderSearch(const AgentOptions& options, JobState& job);

  // What a look at etcd has led to.
  struct Found {
    bool leads = false;                // this launcher
    std::optional<RoundFacts> before;  // for a leader: where the job continues
    std::optional<int> over = {};      // the job has ended with this exit code
  };
  // Looks once. Returns nothing if no launcher is ready to lead yet. Otherwise the store of the job
  // is served, or its address is known. Throws what this launcher cannot recover from.
  std::optional<Found> look();

  // Records that the launcher that was found does not answer, or that it has answered.
  void lost();
  void answered() { since_.reset(); }
  const LeaderRecord& leader() const { return leader_; }
  EtcdElection& election() { return election_; }
  std::chrono::steady_clock::duration waited() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Found> look_at_etcd();
  bool may_follow(const LeaderRecord& leader);
  std::optional<Found> try_to_lead();
  void check_time(const std::string& why);

  const AgentOptions& o_;
  JobState& job_;
  EtcdElection election_;
  LeaderRecord leader_;                     // that was found last
  std::string lost_;                        // its id, if it does not answer
  std::optional<Clock::time_point> since_;  // the search has begun
  std::optional<Clock::time_point> other_token_since_;
  bool has_reached_ = false, is_told_ = false;
};

}  // namespace mtrain::launch
