#include "launch/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/usable_cores.h"
#include "launch/end_signals.h"
#include "launch/error_file.h"
#include "launch/host_gpus.h"
#include "launch/job.h"
#include "launch/job_folder.h"
#include "launch/job_observer.h"
#include "launch/job_processes.h"
#include "launch/job_store.h"
#include "launch/job_token.h"
#include "launch/output_stream.h"
#include "launch/rank_output.h"
#include "launch/rank_pulses.h"
#include "launch/signals.h"
#include "launch/watchdog.h"

extern char** environ;

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

// After the first failure the other ranks notice that their peer is gone, and end. Ranks that have
// not ended after kUntilTerm get SIGTERM, and after kUntilKill SIGKILL: all within 5 s.
constexpr auto kUntilTerm = 2s, kUntilKill = 4s;

constexpr auto kRanWell = 60s;  // after this time a start counts as successful
// How long the end waits while nobody reads the output: after a normal end, after a signal.
constexpr auto kPatience = 5s, kPatienceAfterSignal = 1s;

constexpr int kUsage = 2, kNotRun = 127;  // exit codes of a rank that a restart would repeat

bool same_file(int a, int b) {
  struct stat x, y;
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Begins a line of the launcher. On a terminal the first rank may have drawn a line without a line
// feed; this removes it.
std::string line_begin(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) && term && std::strcmp(term, "dumb") != 0 ? "\r\x1b[K" : "";
}

// The launcher's own streams.
class Console {
 public:
  Console() {
    if (!one_stream) err_.emplace(STDERR_FILENO);
  }
  // Whether both are the same terminal, pipe or file. One thread then writes to it, in order.
  const bool one_stream = same_file(STDOUT_FILENO, STDERR_FILENO);
  OutputStream& out() { return out_; }
  OutputStream& err() { return err_ ? *err_ : out_; }
  void say(const std::string& text) {
    err().write(line_begin(STDERR_FILENO) + err().fit(text) + "\n");
  }

 private:
  OutputStream out_{STDOUT_FILENO};
  std::optional<OutputStream> err_;
};

// Whether a write to the descriptor may have to wait for a reader.
bool has_reader(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && !S_ISREG(info.st_mode) && (!S_ISCHR(info.st_mode) || isatty(fd));
}

struct Child {
  int rank = 0, local_rank = 0;
  pid_t pid = -1;
  fs::path error_file;
  std::optional<int> status;         // as waitpid gives it
  bool asked_to_end = false;         // the agent ended it: its end is not the cause of a failure
  Clock::time_point next_look = {};  // when to look for processes that continue without it
};

bool ended_well(const Child& c) {
  return c.status && WIFEXITED(*c.status) && WEXITSTATUS(*c.status) == 0;
}

// Whether one of kEndSignals has ended this rank.
bool ended_by_signal(const Child& c) {
  if (!c.status) return false;
  if (WIFSIGNALED(*c.status)) return is_end_signal(WTERMSIG(*c.status));
  return WEXITSTATUS(*c.status) > 128 && is_end_signal(WEXITSTATUS(*c.status) - 128);
}

// Returns the number of the first folder attempt_<number>, at or after `from`, that has no output
// of these ranks yet, and makes their folders in it: output of earlier launches is kept.
int make_log_folders(const fs::path& log_dir, int from, int first_rank, int ranks) {
  for (int number = from;; ++number) {
    const fs::path attempt = log_dir / fmt::format("attempt_{}", number);
    const auto folder = [&](int i) { return attempt / fmt::format("rank_{}", first_rank + i); };
    std::error_code error;
    bool taken = false;
    for (int i = 0; i < ranks && !taken; ++i) taken = fs::exists(folder(i), error);
    if (taken) continue;
    fs::create_directories(attempt, error);
    // If two launches start at the same time, only one of them makes the first rank's folder.
    if (!error && !fs::create_directory(folder(0), error) && !error) continue;
    for (int i = 1; i < ranks && !error; ++i) fs::create_directory(folder(i), error);
    if (error)
      throw UserError(fmt::format("cannot make {}: {}", attempt.string(), error.message()),
                      "give a folder that can be written with --log_dir");
    return number;
  }
}

// The state that all starts of a job share.
struct JobState {
  std::string id;
  JobStore& store;
  Signals& signals;
  const Watchdog& watchdog;
  EndRequests ends = {};
  Console& console;
};

// One start of all ranks of this node.
class Attempt {
 public:
  Attempt(const AgentOptions& o, JobState& job, int number, int log_number)
      : o_(o), job_(job), number_(number), log_number_(log_number) {
    job_.store.begin(number);
    for (int i = 0; i < o.ranks_per_node; ++i) start(i);
    for (JobObserver* observer : o.observers) observer->started(number, pulses_.pages());
  }
  ~Attempt() {
    kill_groups();
    // Until here the pids still belong to the ranks: kill_groups() cannot hit another process.
    for (const Child& c : children_) {
      job_.watchdog.remove_group(c.pid);
      waitpid(c.pid, nullptr, 0);
    }
  }

  // Watches the ranks until all have ended. Returns whether every rank ended well.
  bool run() {
    while (!over()) {
      std::vector<pollfd> fds{{job_.signals.fd(), POLLIN, 0}};
      for (const RankOutput& p : outputs_) fds.push_back({p.fd(), POLLIN, 0});
      poll(fds.data(), fds.size(), 100);
      while (const int signal = job_.signals.next()) on_signal(signal);
      pump(fds);
      reap();
      if (failed_at_)
        press();
      else if (!hang_ && (hang_ = pulses_.look(Clock::now())))
        end_hang();
    }
    const bool well = std::all_of(children_.begin(), children_.end(), ended_well);
    kill_groups();  // processes that a rank has left would continue to write
    if (!well) kill_job_processes(job_.id);
    for (RankOutput& p : outputs_) p.drain();  // the last output of the ranks
    return well;
  }

  bool killed_by_user() const { return killed_by_user_; }

  // Whether ranks have failed only because the job got a signal to end, or because such a rank is
  // gone.
  bool ended_by_user() const {
    const auto lost_peer = [](const Child& c) {
      const auto e = read_error_file(c.error_file);
      return e && e->kind == ErrorKind::comm;
    };
    return job_.ends.signal() && std::ranges::any_of(children_, ended_by_signal) &&
           std::ranges::all_of(children_, [&](const Child& c) {
             return ended_well(c) || ended_by_signal(c) || lost_peer(c);
           });
  }

  // Prints why the job failed, and returns the cause, with its exit code.
  JobFailure report() const {
    if (hang_ && !has_own_error()) return failure(1, hang_->culprit, hang_->message);
    const Child* cause = nullptr;
    std::optional<RankError> error;
    // The rank with the lowest weight is the first cause. A rank that died without an error file
    // causes the errors of others; next come errors that are not about peers.
    const auto weight = [](const Child& c, const std::optional<RankError>& e) {
      if (c.asked_to_end && !e) return 3;
      if (!e || e->kind == ErrorKind::crash) return 0;
      return e->kind == ErrorKind::comm ? 2 : 1;
    };
    for (const Child& c : children_) {
      if (ended_well(c)) continue;
      auto e = read_error_file(c.error_file);
      const auto earlier = [&] {
        const int a = weight(c, e), b = weight(*cause, error);
        return a != b ? a < b : e && error && e->time < error->time;
      };
      if (!cause || earlier()) cause = &c, error = std::move(e);
    }
    if (!cause) return failure(1, {}, "");
    // A rank that was stopped cannot say why the others wait for it in vain.
    const bool waited = error && error->kind == ErrorKind::comm && !stopped_.empty();
    const std::string message = waited ? stopped_text() : cause_of(*cause, error);
    std::string text = "mtrain-launch: error: " + message;
    if (waited) text += "\n  then " + cause_of(*cause, error);
    if (error && !error->hint.empty()) text += "\n  hint: " + error->hint;
    if (error) text += lines_below(fmt::format("rank {} was at", cause->rank), error->frames);
    // A rank that died could not write them.
    const bool died = !error || error->kind == ErrorKind::crash;
    text +=
        lines_below(fmt::format("last launches of rank {}", cause->rank),
                    died ? launch_lines(pulses_.state(cause->rank), kLaunches) : error->launches);
    job_.console.say(text);
    for (const Child& c : children_)
      if (&c != cause && !ended_well(c) && !c.asked_to_end && !read_error_file(c.error_file))
        job_.console.say(fmt::format("  then rank {} {}", c.rank, end_of(c)));
    const bool usage =
        cause->status && WIFEXITED(*cause->status) &&
        (WEXITSTATUS(*cause->status) == kUsage || WEXITSTATUS(*cause->status) == kNotRun);
    return failure(usage || (error && error->kind == ErrorKind::user) ? 2 : 1,
                   waited ? stopped_.front() : cause->rank, message);
  }

  JobFailure failure(int exit_code, std::optional<int> culprit, const std::string& message) const {
    return {.job = job_.id,
            .exit_code = exit_code,
            .step = pulses_.last_step(),
            .culprit = culprit,
            .message = message};
  }

 private:
  static constexpr int kLaunches = 20;  // of a rank that died

  static std::string lines_below(const std::string& title, const std::vector<std::string>& lines) {
    if (lines.empty()) return "";
    std::string text = fmt::format("\n  {}:", title);
    for (const std::string& line : lines) text += "\n    " + line;
    return text;
  }

  std::string stopped_text() const {
    const PulseState state = pulses_.state(stopped_.front());
    return fmt::format(
        "rank {} on {} is stopped: {}", stopped_.front(), host_name(),
        state.phase == PulsePhase::none ? "it has not met the other ranks" : phase_text(state));
  }

  // Whether a rank has reported an error that is not about its peers. What hangs is then its end.
  bool has_own_error() const {
    return std::ranges::any_of(children_, [](const Child& c) {
      const auto e = read_error_file(c.error_file);
      return e && e->kind != ErrorKind::comm;
    });
  }

  // Reports first: a rank that waits for a device or a disk may not end even when it is killed.
  void end_hang() {
    if (!has_own_error()) tell_hang();
    job_.store.fail(hang_->message);
    kill_all(SIGKILL);
  }

  void tell_hang() const {
    std::string text =
        fmt::format("mtrain-launch: error: {}\n  hint: {}", hang_->message, hang_->hint);
    text += lines_below("the ranks of this host", hang_->ranks);
    if (hang_->culprit)
      text +=
          lines_below(fmt::format("last launches of rank {}", *hang_->culprit), hang_->launches);
    job_.console.say(text);
  }

  static std::string end_of(const Child& c) {
    if (!c.status) return "did not end";
    if (WIFSIGNALED(*c.status))
      return fmt::format("(pid {}) was killed by signal {} ({})", c.pid, WTERMSIG(*c.status),
                         strsignal(WTERMSIG(*c.status)));
    return fmt::format("(pid {}) ended with exit code {}", c.pid, WEXITSTATUS(*c.status));
  }

  static std::string cause_of(const Child& c, const std::optional<RankError>& error) {
    return fmt::format("rank {} {}", c.rank, error ? "failed: " + error->message : end_of(c));
  }

  // The first rank's output has no prefix, and its progress line is drawn as on a terminal.
  bool is_plain(const Child& c) const { return c.local_rank == 0 && o_.node == 0; }

  // Whether both streams of the child share a pipe or terminal, which keeps the order of its lines.
  bool one_output(const Child& c) const {
    const int files = o_.redirects.of(c.local_rank) | o_.tee.of(c.local_rank);
    return is_plain(c) && job_.console.one_stream && (o_.log_dir.empty() || files == 0);
  }

  // Makes a pipe or terminal for a stream of the child. Returns the child's end; -1: the child
  // writes to the launcher's own stream.
  int output(int stream, const Child& c) {
    const int bit = stream == STDOUT_FILENO ? 1 : 2;
    const int redirects = o_.redirects.of(c.local_rank), tee = o_.tee.of(c.local_rank);
    const bool to_file = !o_.log_dir.empty() && ((redirects | tee) & bit);
    const bool show = (!(redirects & bit) || (tee & bit)) &&
                      (o_.shown_ranks.empty() || o_.shown_ranks.contains(c.local_rank));
    const bool plain = is_plain(c) && !to_file && show;
    if (plain && !has_reader(stream)) return -1;
    std::unique_ptr<LogFile> file;
    if (to_file)
      file = std::make_unique<LogFile>(o_.log_dir / fmt::format("attempt_{}", log_number_) /
                                       fmt::format("rank_{}", c.rank) /
                                       (bit == 1 ? "stdout.log" : "stderr.log"));
    RankOutput::Ends ends;
    if (plain && isatty(stream)) ends = RankOutput::terminal(stream);
    if (ends.rank < 0) ends = RankOutput::pipe();
    Console& console = job_.console;
    OutputStream& to = bit == 1 ? console.out() : console.err();
    outputs_.emplace_back(ends.launcher, show ? &to : nullptr,
                          plain ? "" : fmt::format("{}[rank {}] ", line_begin(stream), c.rank),
                          std::move(file), console.err());
    return ends.rank;
  }

  std::map<std::string, std::string> environment_of(const Child& c) const {
    std::map<std::string, std::string> env;
    for (char** e = environ; *e; ++e)
      if (const char* equals = std::strchr(*e, '='))
        env[std::string(*e, size_t(equals - *e))] = equals + 1;
    // emplace() keeps variables that the user has set.
    for (const auto& [name, value] : o_.environment) env.emplace(name, value);
    const int world = o_.ranks_per_node * o_.nodes;
    env["RANK"] = std::to_string(c.rank);
    env["LOCAL_RANK"] = std::to_string(c.local_rank);
    env["WORLD_SIZE"] = std::to_string(world);
    env["LOCAL_WORLD_SIZE"] = std::to_string(o_.ranks_per_node);
    env["GROUP_RANK"] = std::to_string(o_.node);
    env["MASTER_ADDR"] = o_.master_addr;
    env["MASTER_PORT"] = std::to_string(job_.store.port());
    env["MTRAIN_JOB_ID"] = job_.id;
    env["MTRAIN_RESTART_COUNT"] = std::to_string(number_);
    env["MTRAIN_RESTARTS_LEFT"] = std::to_string(std::max(0, o_.max_restarts - number_));
    env[kServedVariable] = job_.store.serves() ? "1" : "0";
    env[kJobNameVariable] = o_.run_id;
    env["MTRAIN_ERROR_FILE"] = c.error_file.string();
    env[kLauncherPid] = std::to_string(getpid());
    env["ROLE_NAME"] = o_.role;
    env["ROLE_RANK"] = env["RANK"];
    env["ROLE_WORLD_SIZE"] = env["WORLD_SIZE"];
    if (!o_.run_id.empty()) env["TORCHELASTIC_RUN_ID"] = o_.run_id;
    if (const std::string token = job_.store.token(); !token.empty())
      env.emplace(kTokenVariable, token);
    env.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / o_.ranks_per_node)));
    env.erase("TORCHELASTIC_USE_AGENT_STORE");  // an outer torchrun may have set it
    return env;
  }

  void start(int local_rank) {
    Child c;
    c.local_rank = local_rank;
    c.rank = o_.node * o_.ranks_per_node + local_rank;
    c.error_file = folder_.path() / fmt::format("rank-{}.json", c.rank);
    const int pulse = pulses_.add(c.rank);
    const int out = output(STDOUT_FILENO, c);
    const int err = one_output(c) ? out : output(STDERR_FILENO, c);
    std::vector<std::string> arguments = o_.command, variables;
    auto environment = environment_of(c);
    environment[Pulse::kVariable] = std::to_string(pulse);
    for (const auto& [name, value] : environment)
      variables.push_back(fmt::format("{}={}", name, value));
    std::vector<char*> argv, envp;
    for (auto& a : arguments) argv.push_back(a.data());
    for (auto& v : variables) envp.push_back(v.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    const pid_t agent = getpid();
    c.pid = fork();
    if (c.pid < 0) throw RunError(fmt::format("cannot start a rank: {}", std::strerror(errno)));
    if (c.pid == 0) {
      // Between fork and exec only async-signal-safe calls are allowed.
      setpgid(0, 0);  // a group of its own: it can be killed with all processes that it starts
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      job_.watchdog.add_group(getpid());
      if (getppid() != agent) _exit(127);  // the agent has died in between
      if (pulse >= 0) fcntl(pulse, F_SETFD, 0);
      if (out >= 0) dup2(out, STDOUT_FILENO);
      if (err >= 0) dup2(err, STDERR_FILENO);
      ::signal(SIGPIPE, SIG_DFL);
      sigprocmask(SIG_SETMASK, &job_.signals.before(), nullptr);
      execvpe(argv[0], argv.data(), envp.data());
      const char* why = strerrordesc_np(errno);
      for (const char* part : {"mtrain-launch: cannot run ", static_cast<const char*>(argv[0]),
                               ": ", why ? why : "?", "\n"})
        [[maybe_unused]] const auto n = write(STDERR_FILENO, part, std::strlen(part));
      _exit(kNotRun);
    }
    setpgid(c.pid, c.pid);  // the child does this too; either may be first
    pulses_.started(c.rank, c.pid);
    if (out >= 0) close(out);
    if (err >= 0 && err != out) close(err);
    children_.push_back(std::move(c));
  }

  void pump(const std::vector<pollfd>& fds) {
    std::vector<RankOutput> open;
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (!fds[i + 1].revents || outputs_[i].pump()) open.push_back(std::move(outputs_[i]));
    outputs_.swap(open);
  }

  void on_signal(int signal) {
    if (signal == SIGWINCH) {
      const int terminal = isatty(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO;
      for (const RankOutput& p : outputs_) p.resize(terminal);
      return;
    }
    switch (job_.ends.add(signal, Clock::now(), job_.signals.from_keyboard())) {
      case EndRequests::Kind::repeat: return;
      case EndRequests::Kind::second: killed_by_user_ = true; return kill_all(SIGKILL);
      case EndRequests::Kind::first: break;
    }
    // The first rank of a training reports by itself.
    job_.console.say(fmt::format("mtrain-launch: {}: the ranks are asked to {}", name_of(signal),
                                 o_.unsaved ? "save and end" : "end; a second signal kills them"));
    pass_on(signal);
    // The sender of the signal may have signalled the ranks before.
    if (std::ranges::all_of(children_, [](const Child& c) {
          return !c.status || ended_well(c) || ended_by_signal(c);
        }))
      failed_at_.reset();
  }

  // A shell between the launcher and a rank does not forward signals. Other programs of the job,
  // such as `tee` and profilers, get no signal: they are needed until the ranks have ended.
  void pass_on(int signal) {
    sigval value{};
    value.sival_int = signal;  // the signal that the ranks name in messages
    const auto tell = [&](pid_t pid) {
      // The system limits the number of queued signals with a value.
      return sigqueue(pid, SIGTERM, value) == 0 || (errno == EAGAIN && kill(pid, SIGTERM) == 0);
    };
    std::set<pid_t> signalled;
    for (const Child& c : children_)
      if (!c.status && tell(c.pid)) signalled.insert(c.pid);
    for (const JobProcess& p : job_processes(job_.id))
      if ((p.program == "mtrain" || p.program == "mtrain-launch") && signalled.insert(p.pid).second)
        tell(p.pid);
  }

  void reap() {
    for (Child& c : children_) {
      siginfo_t info{};
      if (c.status || waitid(P_PID, id_t(c.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != c.pid)
        continue;
      // The status in waitpid's format.
      const int status =
          info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
      // A wrapper may handle the signal and exit by itself (trap 'exit 0' TERM).
      const bool by_signal = WIFSIGNALED(status) && is_end_signal(WTERMSIG(status));
      if ((by_signal || job_.ends.signal()) && keeps_running(c)) continue;
      c.status = status;
      pulses_.ended(c.rank);
      const bool stopped = job_.ends.signal() && ended_by_signal(c);
      if (ended_well(c) || failed_at_ || stopped) continue;
      failed_at_ = Clock::now();
      stopped_ = pulses_.stopped();
      job_.store.fail(cause_of(c, read_error_file(c.error_file)));
    }
  }

  // Whether mtrain is still running (it saves) after the shell that started it was ended by a
  // signal.
  bool keeps_running(Child& c) {
    if (Clock::now() < c.next_look) return true;
    c.next_look = Clock::now() + 100ms;
    return std::ranges::any_of(job_processes(job_.id), [&](const JobProcess& p) {
      return p.rank == c.rank && p.program == "mtrain";
    });
  }

  // Makes the other ranks end after a failure.
  void press() {
    const auto since = Clock::now() - *failed_at_;
    if (since > kUntilKill) return kill_all(SIGKILL);
    if (since > kUntilTerm) kill_all(SIGTERM);
  }

  void kill_all(int signal) {
    for (Child& c : children_) {
      if (c.status || (c.asked_to_end && signal != SIGKILL)) continue;
      c.asked_to_end = true;
      if (signal != SIGKILL) kill(c.pid, signal);
    }
    if (signal != SIGKILL) return;
    kill_groups();
    kill_job_processes(job_.id);
  }

  // Kills all processes of all ranks, including those that dead ranks have left. The pids still
  // belong to the ranks, since nobody has waited for them.
  void kill_groups() {
    for (const Child& c : children_) kill(-c.pid, SIGKILL);
  }

  bool over() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.status.has_value(); });
  }

  const AgentOptions& o_;
  JobState& job_;
  const int number_, log_number_;
  JobFolder folder_;
  std::vector<Child> children_;
  std::vector<RankOutput> outputs_;
  RankPulses pulses_;
  std::optional<Hang> hang_;
  std::optional<Clock::time_point> failed_at_;
  std::vector<int> stopped_;  // ranks of this host, at the first failure
  bool killed_by_user_ = false;
};

}  // namespace

int ranks_per_node(const std::string& text) {
  if (text == "cpu") return usable_cores();
  const int gpus = int(visible_gpus().size());
  if (text == "gpu") {
    if (gpus == 0)
      throw UserError("--nproc_per_node=gpu: this host has no visible GPU", "use cpu or a number");
    return gpus;
  }
  if (text == "auto") return gpus ? gpus : usable_cores();
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > 4096)
    throw UserError(fmt::format("--nproc_per_node={}: not a number of ranks", text),
                    "use a number, auto, gpu or cpu");
  return n;
}

std::chrono::milliseconds restart_delay(int failures) {
  constexpr int kMaxDoublings = 5;
  if (failures <= 1) return 0s;
  return std::min<std::chrono::milliseconds>(1s * (1 << std::min(failures - 2, kMaxDoublings)),
                                             30s);
}

namespace {

// Waits before the next start. Returns false if a signal ends the job during the wait.
bool wait_to_restart(std::chrono::milliseconds delay, JobState& job) {
  const auto until = Clock::now() + delay;
  while (!job.ends.signal()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return true;
    pollfd p{job.signals.fd(), POLLIN, 0};
    poll(&p, 1, int(left.count()));
    while (const int signal = job.signals.next())
      if (signal != SIGWINCH) job.ends.add(signal, Clock::now(), job.signals.from_keyboard());
  }
  return false;
}

int run_starts(const AgentOptions& o, JobState& job) {
  Console& console = job.console;
  const auto tell_unsaved = [&] {
    if (o.unsaved) console.say("mtrain-launch: " + o.unsaved());
  };
  const auto tell_failure = [&](const JobFailure& failure) {
    if (o.on_failure) o.on_failure(failure);
    for (JobObserver* observer : o.observers) observer->failed(failure);
  };
  for (int number = 0, failures = 0, log_number = -1;; ++number) {
    if (!o.log_dir.empty() && (o.redirects.any() || o.tee.any())) {
      log_number =
          make_log_folders(o.log_dir, log_number + 1, o.node * o.ranks_per_node, o.ranks_per_node);
      console.say(fmt::format("mtrain-launch: the ranks' output is in {}",
                              (o.log_dir / fmt::format("attempt_{}", log_number)).string()));
    }
    const auto began = Clock::now();
    Attempt attempt(o, job, number, log_number);
    if (attempt.run()) return 0;
    const int signal = job.ends.signal();
    if (attempt.killed_by_user() || attempt.ended_by_user()) {
      const std::string why = attempt.killed_by_user()
                                  ? "second signal: the ranks were killed"
                                  : fmt::format("{} has ended the ranks", name_of(signal));
      console.say("mtrain-launch: " + why);
      JobFailure failure = attempt.failure(128 + signal, {}, why);
      failure.interrupted = true;
      tell_failure(failure);
      tell_unsaved();
      return 128 + signal;
    }
    JobFailure failure = attempt.report();
    // Input that worked at the first start is not a user's mistake at a later one.
    if (number > 0) failure.exit_code = 1;
    const int code = failure.exit_code;
    failure.restarts = code != 2 && !signal && number < o.max_restarts;
    tell_failure(failure);
    if (!failure.restarts) {
      if (code != 2) tell_unsaved();
      return code;
    }
    failures = Clock::now() - began >= kRanWell ? 1 : failures + 1;
    const auto delay = restart_delay(failures);
    const double seconds = std::chrono::duration<double>(delay).count();
    console.say(fmt::format("mtrain-launch: restarting all ranks ({} of {}) {}", number + 1,
                            o.max_restarts,
                            seconds > 0 ? fmt::format("in {:.3g} s", seconds) : "now"));
    for (JobObserver* observer : o.observers) observer->restarting(number + 1, seconds);
    if (!wait_to_restart(delay, job)) {
      console.say("mtrain-launch: the job got a signal to end: the ranks are not restarted");
      tell_unsaved();
      return code;
    }
  }
}

}  // namespace

int run_agent(const AgentOptions& options) {
  remove_stale_job_folders();
  Signals signals;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string id = fmt::format("{}-{}-{}", host_name(), getpid(), now.count());
  const Watchdog watchdog(id);  // before the store and the console, which have threads
  JobStore store(options);
  Console console;
  for (JobObserver* observer : options.observers) observer->begin(id);
  JobState job{
      .id = id, .store = store, .signals = signals, .watchdog = watchdog, .console = console};
  const int code = run_starts(options, job);
  for (JobObserver* observer : options.observers) observer->ended(code);
  watchdog.dismiss();
  const auto patience = job.ends.signal() ? kPatienceAfterSignal : kPatience;
  const auto asked_to_end = [&] {
    const int signal = signals.next();
    return signal != 0 && signal != SIGWINCH;
  };
  console.out().finish(patience, asked_to_end);
  console.err().finish(patience, asked_to_end);
  return code;
}

}  // namespace mtrain::launch
