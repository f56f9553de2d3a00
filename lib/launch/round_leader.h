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

#include "launch/launcher_notes.h"

namespace mtrain::launch {

// The note of a launcher, and whether the connection that wrote it still exists.
struct SeenLauncher {
  LauncherNote note;
  bool connected = true;
};

struct LeaderOptions {
  int min_nodes = 1, max_nodes = 1;
  int max_restarts = 0;  // without a new checkpoint between them
  // The most ranks, at most `ranks`, with which the job can train; 0: none.
  std::function<int(int ranks)> largest_world;
  // Describes the layout of so many ranks, and the nearest numbers of ranks that can train.
  std::function<std::string(int world)> layout, nearest_worlds;
  // Returns its step; -1: there is none. Returns nothing if the folder cannot be read now.
  std::function<std::optional<int64_t>()> newest_checkpoint;
  std::chrono::milliseconds timeout{600000};  // how long a round waits for hosts
  int leader = 0;  // the number of the host whose launcher leads: rank 0 is there

  std::string job = {};  // its id, if its launchers have none in common; for ranks

  // For a job whose leader is elected. Whether this launcher still leads; null: it does.
  std::function<bool()> leads;
  // Records that a round begins; null: nothing is recorded. False: it must not begin now.
  std::function<bool(const RoundFacts&)> settle;
  std::function<std::string()> settle_fault;  // why it must not, for messages
  // Whether ranks of an earlier leader may still use the run folder; null: they do not.
  std::function<bool()> folder_held;

  bool elastic() const { return min_nodes < max_nodes; }
};

// Distributes the ranks over hosts that are alive, in the order of their nodes. A host with 0 ranks
// is a spare. Returns nothing if the job cannot train with these hosts.
std::vector<RoundMember> members_of_round(const std::vector<LauncherNote>& hosts,
                                          const LeaderOptions& options);

class RoundLeader {
 public:
  using Clock = std::chrono::steady_clock;

  // A launcher that has not changed its note for this long is gone; so is one without a connection
  // for kReconnect. A launcher notices a lost connection at its next beat, after up to 2 s.
  static constexpr std::chrono::seconds kLease{10};
  static constexpr std::chrono::seconds kReconnect{4};
  // A longer time between two looks counts as this much: this launcher was stopped, or its disk was
  // slow, and could not see the others.
  static constexpr std::chrono::seconds kLongestGap{1};
  // How long a round waits for more hosts than its minimum.
  static constexpr std::chrono::seconds kLastCall{5};
  // How long hosts may take to end their ranks.
  static constexpr std::chrono::seconds kUntilEnded{30};
  // How long a new leader waits for the ranks of the one before, which may not know that it is
  // gone.
  static constexpr std::chrono::seconds kFolderWait{60};

  explicit RoundLeader(LeaderOptions options) : o_(std::move(options)), job_(o_.job) {}
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
  void look_for_joiners();
  void look_for_stragglers();
  void replace_host(const RoundMember& slow, int rank);
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
  std::optional<std::string> why_no_restart(const RoundCause& cause);
  void begin_again(std::chrono::milliseconds delay, Clock::time_point now);
  void give_up(int code, std::vector<std::string> lines);
  void record_failures();
  void record_proven(Clock::time_point now);
  std::vector<Launcher*> newcomers_at_fault(const RoundCause& cause);
  bool is_at_fault(const Launcher& l, const RoundCause& cause);
  int restarts_left() const;
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
  std::optional<int64_t> joins_after_;  // a host waits for a checkpoint that is newer
  bool planned_ = false;                // the round ends because a host joins, or is replaced
  std::set<std::string> slow_;          // ids of hosts that are left out while the others suffice
  std::set<int> slow_ranks_;            // of the round, that were reported
  std::optional<int64_t> replaced_after_;  // a slow host ends the round at a newer checkpoint
  int64_t counted_from_ = -1;              // the newest checkpoint at the last failure
  std::optional<int64_t> began_with_;      // the newest checkpoint when the round began
  int restarts_ = 0, failures_ = 0, last_code_ = 0;
  std::optional<RoundCause> before_;  // the last failure
  int signal_ = 0;
  bool killed_ = false;
  std::optional<RoundCause> inherited_;  // the loss of the leader before this one
  std::set<std::string> awaited_;        // ids of its hosts
  bool has_begun_ = false;               // a round, under this leader
  std::optional<Clock::time_point> unsettled_since_, folder_held_since_;
  bool continues_ = false;  // the job of an earlier leader
};

}  // namespace mtrain::launch
