// Decides the rounds of a job whose hosts act together: which hosts and ranks a round has, when it
// ends, why it has failed, and whether another one follows. Pure: times and notes are arguments.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launch/planned_changes.h"
#include "launch/restart_count.h"
#include "launch/round_members.h"

namespace mtrain::launch {

// The note of a launcher, and whether the connection that wrote it still exists.
struct SeenLauncher {
  LauncherNote note;
  bool connected = true;
};

class RoundLeader {
 public:
  using Clock = std::chrono::steady_clock;

  // A launcher that has not changed its note for this long is gone; so is one without a connection
  // for kReconnect. A launcher notices at once that its connection is broken, and makes another
  // one.
  static constexpr std::chrono::seconds kLease{10};
  static constexpr std::chrono::milliseconds kReconnect{1500};
  // A longer time between two looks counts as this much: this launcher was stopped, or its disk was
  // slow, and could not see the others.
  static constexpr std::chrono::milliseconds kLongestGap{250};
  // How long a round waits for more hosts than its minimum.
  static constexpr std::chrono::seconds kLastCall{5};
  // How long hosts may take to end their ranks.
  static constexpr std::chrono::seconds kUntilEnded{30};
  // How long a new leader waits for the ranks of the one before, which may not know that it is
  // gone.
  static constexpr std::chrono::seconds kFolderWait{60};

  explicit RoundLeader(LeaderOptions options)
      : o_(std::move(options)), job_(o_.job), restarts_(o_.max_restarts) {}
  // Continues the job of a leader that is gone. Without a `before.leader` nothing is lost: only the
  // numbers of rounds continue.
  RoundLeader(LeaderOptions options, const RoundFacts& before);

  // Returns what to announce. `launchers` are the notes by their keys.
  std::vector<LauncherNews> look(const std::map<std::string, SeenLauncher>& launchers,
                                 Clock::time_point now);
  bool is_over() const { return phase_ == Phase::over; }
  bool is_running() const { return phase_ == Phase::running; }

 private:
  enum class Phase { gathering, running, ending, over };
  struct Launcher {
    LauncherNote note;
    Clock::time_point since, changed, connected;
    bool lost = false, refused = false;
  };

  void update(const std::map<std::string, SeenLauncher>& launchers, Clock::time_point now);
  void refuse(Launcher& l, int code, const std::string& why, const char* hint);
  void refuse_doubles();
  void admit();
  void pass_on_signals();
  void gather(Clock::time_point now);
  void watch(Clock::time_point now);
  void look_for_changes(Clock::time_point now);
  void await_end(Clock::time_point now);
  void abandon();
  RoundFacts facts() const;
  bool has_settled(Clock::time_point now);
  bool waits_for_folder(Clock::time_point now);
  bool is_complete(const std::vector<LauncherNote>& hosts, Clock::time_point now) const;
  void begin_round(std::vector<RoundMember> members, Clock::time_point now);
  void announce_start();
  LauncherNews start_news() const;
  void end_round(LauncherNews::Kind how, std::vector<std::string> lines, Clock::time_point now);
  void decide(RoundCause cause, Clock::time_point now);
  void begin_again(std::chrono::milliseconds delay, Clock::time_point now);
  void give_up(int code, std::vector<std::string> lines);
  void record_failures();
  void record_proven(Clock::time_point now);
  std::vector<Launcher*> newcomers_at_fault(const RoundCause& cause);
  bool is_at_fault(const Launcher& l, const RoundCause& cause);
  RoundCause loss_of(const Launcher& l) const;
  RoundCause first_cause() const;
  bool is_member(const Launcher& l) const;
  bool has_place(const Launcher& l) const;
  bool is_ready() const;
  std::vector<LauncherNote> alive() const;
  void announce(LauncherNews news);

  const LeaderOptions o_;
  std::map<std::string, Launcher> launchers_;  // by the keys of their notes
  std::vector<LauncherNews> news_;
  Phase phase_ = Phase::gathering;
  const std::string job_;  // the id of the job
  int64_t round_ = 0;
  std::vector<RoundMember> members_;     // of an elastic round
  std::map<int, std::string> admitted_;  // to another round: the id of each node's launcher
  int world_ = 0;
  std::vector<std::string> failed_;  // keys of members, in the order of their failures
  std::set<std::string> gone_;       // keys of those that were lost; they may have come back
  std::set<std::string> proven_;     // ids of hosts with which the job has trained
  std::set<std::string> excused_;    // ids of others, a rank of which has died
  std::optional<Clock::time_point> last_look_;
  Clock::time_point time_{};  // without the time in which this launcher was stopped
  Clock::time_point round_began_{}, ends_since_{}, not_before_{};
  std::optional<Clock::time_point> gathers_since_, enough_since_;
  bool told_to_wait_ = false;
  RestartCount restarts_;
  PlannedChanges changes_;
  int last_code_ = 0, signal_ = 0;
  bool killed_ = false;
  std::optional<RoundCause> inherited_;  // the loss of the leader before this one
  std::set<std::string> awaited_;        // ids of its hosts
  bool has_begun_ = false;               // a round, under this leader
  std::optional<Clock::time_point> unsettled_since_, folder_held_since_;
  bool continues_ = false;  // the job of an earlier leader
};

}  // namespace mtrain::launch
