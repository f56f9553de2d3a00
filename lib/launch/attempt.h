// One start of all ranks of a job on this host.
#pragma once
#include <sys/types.h>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/console.h"
#include "launch/error_file.h"
#include "launch/job_folder.h"
#include "launch/job_store.h"
#include "launch/launcher_link.h"
#include "launch/launcher_notes.h"
#include "launch/numa_binding.h"
#include "launch/rank_output.h"
#include "launch/rank_pulses.h"
#include "launch/signals.h"
#include "launch/watchdog.h"

struct pollfd;

namespace mtrain::launch {

// The state that all starts of a job share.
struct JobState {
  std::string id;  // of this launcher
  JobStore& store;
  Signals& signals;
  const Watchdog& watchdog;
  EndRequests ends = {};
  Console& console;
  LauncherLink* link = nullptr;   // null: this host acts alone
  std::string shared_id = {};     // of the job on all hosts, if its launchers elect a leader
  std::string told_binding = {};  // the last lines about the CPUs of the ranks
  bool told_no_pulse = false;     // a warning has said that ranks cannot be watched

  // Identifies the job to the run folder.
  const std::string& job_id() const { return shared_id.empty() ? id : shared_id; }
};

// The ranks of a start that run on this host.
struct RoundPlace {
  int first_rank = 0, ranks = 1, world = 1;
  int group_rank = 0, groups = 1;  // of the host, among those with ranks
  int restarts_left = 0;           // after this start
};

// A process that the launcher has started as a rank.
struct RankProcess {
  int rank = 0, local_rank = 0;
  pid_t pid = -1;
  std::filesystem::path error_file;
  std::optional<int> status;  // as waitpid gives it
  bool abandoned = false;     // it does not end although it was killed
  bool asked_to_end = false;  // the agent ended it: its end is not the cause of a failure
  std::chrono::steady_clock::time_point next_look = {};  // for processes that continue without it
};

class Attempt {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the ranks. `log_number` is that of the folder for their output.
  Attempt(const AgentOptions& options, JobState& job, const RoundPlace& place, int number,
          int log_number);
  ~Attempt();  // kills what is left of them
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Watches the ranks until all have ended. Returns whether every rank ended well.
  bool run();

  bool killed_by_user() const { return killed_by_user_; }
  // Whether ranks have failed only because the job got a signal to end, or because such a rank is
  // gone.
  bool ended_by_user() const;

  // Returns why the ranks failed, as far as this host knows.
  RoundCause cause() const;
  // The same if a signal has ended them.
  RoundCause interruption() const;

 private:
  std::string stopped_text() const;
  bool has_own_error() const;
  void end_hang();
  std::string hang_text() const;
  RoundCause cause_with(int weight, std::optional<int> rank, const std::string& message,
                        const std::string& text) const;
  std::string details_of(const RankProcess& c, const std::optional<RankError>& error) const;
  bool is_plain(const RankProcess& c) const;
  bool one_output(const RankProcess& c) const;
  int output(int stream, const RankProcess& c);
  std::map<std::string, std::string> environment_of(const RankProcess& c) const;
  std::vector<CpuList> bind_ranks();
  void start(int local_rank);
  void pump(const std::vector<pollfd>& fds);
  void on_signal(int signal);
  void end_by(int signal, const std::string& whose);
  void report_failure();
  void report_straggler();
  void take_news();
  void pass_on(int signal);
  void reap();
  bool keeps_running(RankProcess& c);
  void press();
  void kill_all(int signal);
  void kill_groups();
  void abandon_unkillable();
  bool over() const;

  const AgentOptions& o_;
  JobState& job_;
  const RoundPlace place_;
  const int number_, log_number_;
  const std::vector<CpuList> cpus_;  // of each local rank; empty: the ranks are not bound
  JobFolder folder_;
  std::vector<RankProcess> children_;
  std::vector<RankOutput> outputs_;
  RankPulses pulses_;
  std::optional<Hang> hang_;
  std::optional<Clock::time_point> failed_at_, killed_at_;
  std::vector<int> stopped_;  // ranks of this host, at the first failure
  bool killed_by_user_ = false;
};

}  // namespace mtrain::launch
