// Finds the launcher that leads a job whose launchers elect one, or makes this launcher the leader.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launch/agent.h"
#include "launch/attempt.h"
#include "launch/etcd_election.h"

namespace mtrain::launch {

// Returns how long to wait after so many looks: longer each time, since many hosts may search for a
// long time. Hosts that have noticed a loss at the same time do not look at the same time.
std::chrono::milliseconds search_pause(int looks);

class LeaderSearch {
 public:
  using Clock = std::chrono::steady_clock;

  LeaderSearch(const AgentOptions& options, JobState& job,
               std::function<Clock::time_point()> now = Clock::now);

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
  void answered();
  // Records that the process of the launcher that was lost has ended.
  void ended() { is_dead_ = true; }
  // Records a round that begins, and whether this host has ranks in it.
  void remember(const LauncherNews& round, bool has_ranks);
  // For the launcher that leads: records the end of the job.
  void finish(int code);
  const LeaderRecord& leader() const { return leader_; }
  // Whether leader() is not in etcd any more, and may only have lost its connection to etcd.
  bool is_guess() const { return is_guess_; }
  // Whether leader() did not answer when it was found before.
  bool is_retry() const { return leader_.id == lost_; }
  EtcdElection& election() { return election_; }
  // Since the search began, or since a leader has answered.
  Clock::duration waited() const;

 private:
  std::optional<Found> look_at_etcd();
  bool may_follow(const LeaderRecord& leader);
  std::optional<Found> try_to_lead();
  std::optional<Found> follow_last(const RoundFacts& facts);
  bool is_of_job(const RoundFacts& facts) const;
  std::string own_address();
  void check_time();
  void give_up() const;

  const AgentOptions& o_;
  JobState& job_;
  const std::function<Clock::time_point()> now_;
  EtcdElection election_;
  LeaderRecord leader_;  // that was found last
  std::string lost_;     // its id, if it does not answer
  Clock::time_point lost_at_{};
  std::string awaited_;                     // what this look has found to be missing
  std::string unanswered_;                  // describes a leader that has never answered
  std::string guessed_;                     // the id of a leader that was guessed
  std::optional<RoundFacts> known_;         // the last round of which this launcher has heard
  std::optional<Clock::time_point> since_;  // the search has begun
  std::optional<Clock::time_point> other_token_since_;
  bool has_reached_ = false, is_told_ = false, is_warned_ = false;
  bool has_answered_ = false;  // this leader
  bool has_joined_ = false;    // any leader has answered
  bool has_ranks_ = false, is_guess_ = false;
  bool is_dead_ = false;  // the process of lost_
};

}  // namespace mtrain::launch
