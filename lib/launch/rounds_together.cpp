#include "launch/rounds_together.h"

#include <poll.h>
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "launch/end_signals.h"
#include "launch/job_observer.h"
#include "launch/leader_search.h"
#include "launch/leading_launcher.h"
#include "launch/log_folders.h"

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kQuietWait = 5s;  // for host 0, before a line says so
// How long a launcher that got a signal waits for a leader that can end all hosts. The lease of a
// lost leader begins again when etcd is restarted.
constexpr auto kWaitToEnd = 30s;
constexpr auto kRetry = 2s;  // for a leader that did not answer before

LeaderOptions leader_options(const AgentOptions& o, const JobState& job,
                             EtcdElection* election = nullptr) {
  LeaderOptions options{.min_nodes = o.min_nodes > 0 ? o.min_nodes : o.nodes,
                        .max_nodes = o.nodes,
                        .max_restarts = o.max_restarts,
                        .largest_world = o.largest_world,
                        .layout = o.layout,
                        .nearest_worlds = o.nearest_worlds,
                        .newest_checkpoint = o.newest_checkpoint,
                        .timeout = o.rendezvous_timeout,
                        .leads = {},
                        .settle = {},
                        .settle_fault = {},
                        .folder_held = {}};
  if (!election) return options;
  options.leader = o.node;
  options.job = job.id;
  options.leads = [election] { return election->leads(); };
  options.settle = [election](const RoundFacts& facts) { return election->settle(facts); };
  options.settle_fault = [election] { return election->fault(); };
  options.folder_held = o.run_folder_held;
  return options;
}

LauncherLink::Options link_options(const AgentOptions& o, const JobState& job,
                                   std::chrono::milliseconds to_connect, bool second) {
  return {.at = job.store.address(),
          .find_token = [&store = job.store] { return store.find_token(); },
          .token_may_change = job.store.token_may_change(),
          .to_connect = to_connect,
          .note = {.id = job.id,
                   .host = host_name(),
                   .node = o.node,
                   .ranks = o.ranks_per_node,
                   .signal = job.ends.signal(),
                   .second = second,
                   .cause = {}}};
}

// Returns the ranks that this host runs; nothing if it has none in this round.
std::optional<RoundPlace> place_in(const LauncherNews& round, const AgentOptions& o,
                                   const std::string& id) {
  if (round.members.empty())
    return RoundPlace{.first_rank = o.node * o.ranks_per_node,
                      .ranks = o.ranks_per_node,
                      .world = o.ranks_per_node * o.nodes,
                      .group_rank = o.node,
                      .groups = o.nodes,
                      .restarts_left = round.restarts_left};
  RoundPlace place{.world = round.world, .groups = 0, .restarts_left = round.restarts_left};
  bool found = false;
  for (const RoundMember& m : round.members) {
    if (m.ranks == 0) continue;
    if (m.id == id) {
      place.first_rank = m.first_rank;
      place.ranks = m.ranks;
      place.group_rank = place.groups;
      found = true;
    }
    ++place.groups;
  }
  return found ? std::optional(place) : std::nullopt;
}

class RoundsTogether {
 public:
  RoundsTogether(const AgentOptions& o, JobState& job) : o_(o), job_(job), logs_(o, job.console) {
    if (o.elects()) {
      search_ = std::make_unique<LeaderSearch>(o, job);
      return;
    }
    if (o.node == 0) {
      MT_CHECK(job.store.server(), "host 0 does not serve the store");
      leader_ = std::make_unique<LeadingLauncher>(leader_options(o, job), *job.store.server());
    }
    make_link();
  }
  ~RoundsTogether() { job_.link = nullptr; }
  RoundsTogether(const RoundsTogether&) = delete;
  RoundsTogether& operator=(const RoundsTogether&) = delete;

  int run() {
    std::optional<int> code;
    while (!code) {
      if (search_) code = find_leader();
      if (!code) code = follow_news();
    }
    if (*code != 0 && *code != kUserMistake && !refused_ && o_.unsaved)
      job_.console.say("mtrain-launch: " + o_.unsaved());
    if (leader_) {
      leader_->await_others(link_->id());
      if (search_) search_->finish(*code);
    }
    return *code;
  }

 private:
  static constexpr int kUserMistake = 2;

  // An elected leader that does not answer is searched again. One that was lost before is tried
  // for a short time, since another launcher may be elected meanwhile, and begins a round soon.
  std::chrono::milliseconds time_to_connect() const {
    if (!search_) return o_.rendezvous_timeout;
    return search_->is_retry() && !leader_ ? kRetry : LauncherLink::kLeaderLease;
  }

  void make_link() {
    link_ = std::make_unique<LauncherLink>(link_options(o_, job_, time_to_connect(), second_));
    job_.link = link_.get();
  }

  void drop_leader() {
    const bool is_dead = link_->is_leader_dead();
    job_.link = nullptr;
    link_.reset();
    leader_.reset();
    search_->lost();
    if (is_dead) search_->ended();
  }

  // Makes the link to the launcher that leads, which may be this one. Returns the exit code if the
  // job is over for this host.
  std::optional<int> find_leader() {
    for (int looks = 0;; ++looks) {
      take_signals();
      if (ends_alone()) return 128 + job_.ends.signal();
      if (const auto found = search_->look()) {
        if (found->over) return found->over;
        if (found->leads) {
          job_.console.say(
              fmt::format("mtrain-launch: host {} ({}) leads the job", o_.node, host_name()));
          leader_ = std::make_unique<LeadingLauncher>(
              leader_options(o_, job_, &search_->election()), *job_.store.server(), found->before);
        }
        make_link();
        return std::nullopt;
      }
      pollfd fd{job_.signals.fd(), POLLIN, 0};
      poll(&fd, 1, int(search_pause(looks).count()));
    }
  }

  // Whether a signal ends this host without a leader, which would end all of them.
  bool ends_alone() {
    if (job_.ends.signal() == 0) return false;
    if (!signalled_) signalled_ = Clock::now();
    return !has_joined_ ||
           std::min(search_->waited(), Clock::now() - *signalled_) > Clock::duration(kWaitToEnd);
  }

  // Returns why the leader cannot be reached; "" while it can, or may still.
  std::string why_lost() {
    try {
      return link_->lost();
    } catch (const Error& e) {
      // The port of a leader that is gone may be that of another job by now.
      if (!search_ || !search_->is_guess()) throw;
      return e.message();
    }
  }

  // Returns the exit code; nothing if another leader must be found.
  std::optional<int> follow_news() {
    const auto began = Clock::now();
    bool told = false;
    for (;;) {
      take_signals();
      link_->clear_event();
      const bool alone = !link_->has_connected();
      if (!alone && search_) {
        has_joined_ = true;
        search_->answered();
      }
      if (const std::string why = why_lost(); !why.empty()) return without_leader(why);
      if (const auto news = link_->news()) {
        if (const auto code = follow(*news)) return code;
        continue;
      }
      if (search_ && leader_ && !search_->election().leads()) {
        drop_leader();
        return std::nullopt;
      }
      if (alone && ends_alone()) return 128 + job_.ends.signal();
      if (alone && !told && Clock::now() - began > kQuietWait) {
        told = true;
        job_.console.say(fmt::format(
            "mtrain-launch: waiting for the launcher of host {} at {}:{} ({:.3g} s)",
            search_ ? search_->leader().node : 0, job_.store.reached(), job_.store.port(),
            std::chrono::duration<double>(o_.rendezvous_timeout).count()));
      }
      pollfd fds[] = {{job_.signals.fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}};
      poll(fds, 2, 200);
    }
  }

  // Takes the oldest news. Returns the exit code if the job is over for this host.
  std::optional<int> follow(const LauncherNews& news) {
    using Kind = LauncherNews::Kind;
    link_->drop_news();
    if (is_of_other(news, link_->id())) return std::nullopt;
    for (const std::string& line : news.lines) job_.console.say(line);
    refused_ = news.kind == Kind::refuse;
    if (refused_ || news.kind == Kind::over) return news.code;
    if (news.kind == Kind::cause && news.cause) report(news);
    if (news.kind == Kind::signal && job_.ends.signal() == 0)
      job_.ends.add_of_other(news.signal, Clock::now());
    if (news.kind != Kind::run) return std::nullopt;
    job_.shared_id = news.job;
    const auto place = place_in(news, o_, link_->id());
    if (search_) search_->remember(news, place.has_value());
    if (place) run_round(*place, news.round);
    return std::nullopt;
  }

  void report(const LauncherNews& news) {
    JobFailure failure = failure_of(*news.cause, job_.job_id());
    failure.restarts = news.restarts;
    if (o_.on_failure && (!search_ || leader_)) o_.on_failure(failure);
    for (JobObserver* observer : o_.observers) {
      observer->failed(failure);
      if (news.restarts) observer->restarting(int(news.round) + 1, news.delay_s);
    }
  }

  void run_round(const RoundPlace& place, int64_t round) {
    using State = LauncherNote::State;
    const int log_number = logs_.make(place.first_rank, place.ranks);
    link_->change([&](LauncherNote& note) {
      note.round = round;
      note.state = State::running;
      note.well = false;
      note.cause.reset();
      note.straggler.reset();
    });
    Attempt attempt(o_, job_, place, int(round), log_number);
    const bool well = attempt.run();
    std::optional<RoundCause> cause;
    if (!well)
      cause = attempt.killed_by_user() || attempt.ended_by_user() ? attempt.interruption()
                                                                  : attempt.cause();
    link_->change([&](LauncherNote& note) {
      note.state = State::ended;
      note.well = well;
      note.cause = cause;
    });
    last_ = std::move(cause);
    ended_well_ = well;
    second_ = second_ || (attempt.killed_by_user() && job_.ends.signal() != 0);
  }

  void take_signals() {
    while (const int signal = job_.signals.next()) {
      if (signal == SIGWINCH) continue;
      const auto kind = job_.ends.add(signal, Clock::now(), job_.signals.from_keyboard());
      if (kind == EndRequests::Kind::repeat) continue;
      second_ = second_ || kind == EndRequests::Kind::second;
      if (!link_) continue;  // its first note has the signal
      link_->change([&](LauncherNote& note) {
        note.signal = job_.ends.signal();
        note.second = second_;
      });
    }
  }

  std::optional<int> without_leader(const std::string& why) {
    if (ended_well_) return 0;
    if (search_ && !refused_) {
      const LeaderRecord& leader = search_->leader();
      if (link_->has_connected())
        job_.console.say(fmt::format(
            "mtrain-launch: warning: host {} ({}), whose launcher leads the job, does not answer: "
            "{}; the launchers that are left elect another one",
            leader.node, leader.host, why));
      drop_leader();
      return std::nullopt;
    }
    if (job_.ends.signal()) return 128 + job_.ends.signal();
    if (last_ && !last_->text.empty()) job_.console.say(last_->text);
    if (!link_->has_connected())
      job_.console.say(fmt::format(
          "mtrain-launch: error: the launcher of host 0 does not answer at {}:{} after {:.3g} s: "
          "{}\n  hint: start mtrain-launch on host 0 (--node_rank=0), with the same address and "
          "port",
          o_.master_addr, job_.store.port(),
          std::chrono::duration<double>(o_.rendezvous_timeout).count(), why));
    else
      job_.console.say(fmt::format(
          "mtrain-launch: error: host 0 is gone: its launcher, which leads this job and serves its "
          "store, {}: {}\n  hint: start all hosts again with checkpoint.load=latest; with "
          "--rdzv_backend=etcd a job of MIN:MAX hosts also survives the loss of host 0",
          link_->is_leader_dead()
              ? "has ended"
              : fmt::format("has not answered for {} s", LauncherLink::kLeaderLease.count()),
          why));
    return 1;
  }

  const AgentOptions& o_;
  JobState& job_;
  LogFolders logs_;
  std::unique_ptr<LeaderSearch> search_;  // null: host 0 leads
  std::unique_ptr<LeadingLauncher> leader_;
  std::unique_ptr<LauncherLink> link_;
  std::optional<RoundCause> last_;  // why this host's ranks have failed
  bool ended_well_ = false, refused_ = false, has_joined_ = false;
  bool second_ = false;  // a second signal has come
  std::optional<Clock::time_point> signalled_;
};

}  // namespace

JobFailure failure_of(const RoundCause& cause, const std::string& job_id) {
  return {.job = job_id,
          .host = cause.host,
          .exit_code = cause.exit_code,
          .interrupted = cause.interrupted,
          .step = cause.step,
          .culprit = cause.rank,
          .message = cause.message};
}

int run_rounds_together(const AgentOptions& options, JobState& job) {
  return RoundsTogether(options, job).run();
}

}  // namespace mtrain::launch
