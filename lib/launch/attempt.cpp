#include "launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/usable_cores.h"
#include "launch/end_signals.h"
#include "launch/job.h"
#include "launch/job_observer.h"
#include "launch/job_processes.h"
#include "launch/job_token.h"

extern char** environ;

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

// After the first failure the other ranks notice that their peer is gone, and end. Ranks that have
// not ended after kUntilTerm get SIGTERM, and after kUntilKill SIGKILL: all within 5 s.
constexpr auto kUntilTerm = 2s, kUntilKill = 4s;
constexpr auto kUntilAbandoned = 8s;  // after SIGKILL

constexpr int kUsage = 2, kNotRun = 127;  // exit codes of a rank that a restart would repeat
constexpr int kNotBound = 1;              // a later start may have other CPUs

// Whether a write to the descriptor may have to wait for a reader.
bool has_reader(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && !S_ISREG(info.st_mode) && (!S_ISCHR(info.st_mode) || isatty(fd));
}

bool ended_well(const RankProcess& c) {
  return c.status && WIFEXITED(*c.status) && WEXITSTATUS(*c.status) == 0;
}

// Whether one of kEndSignals has ended this rank.
bool ended_by_signal(const RankProcess& c) {
  if (!c.status) return false;
  if (WIFSIGNALED(*c.status)) return is_end_signal(WTERMSIG(*c.status));
  return WEXITSTATUS(*c.status) > 128 && is_end_signal(WEXITSTATUS(*c.status) - 128);
}

constexpr int kLaunches = 20;  // of a rank that died

std::string lines_below(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = fmt::format("\n  {}:", title);
  for (const std::string& line : lines) text += "\n    " + line;
  return text;
}

std::string end_of(const RankProcess& c) {
  if (!c.status) return "did not end";
  if (WIFSIGNALED(*c.status))
    return fmt::format("(pid {}) was killed by signal {} ({})", c.pid, WTERMSIG(*c.status),
                       strsignal(WTERMSIG(*c.status)));
  return fmt::format("(pid {}) ended with exit code {}", c.pid, WEXITSTATUS(*c.status));
}

cpu_set_t set_of(const CpuList& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int n : cpus) CPU_SET(n, &set);
  return set;
}

// Ends the process of a rank that cannot begin. Between fork and exec only async-signal-safe calls
// are allowed.
[[noreturn]] void end_child(const char* what, int exit_code) {
  const char* why = strerrordesc_np(errno);
  for (const char* part : {"mtrain-launch: ", what, ": ", why ? why : "?", "\n"})
    [[maybe_unused]] const auto n = write(STDERR_FILENO, part, std::strlen(part));
  _exit(exit_code);
}

std::string cause_of(const RankProcess& c, const std::optional<RankError>& error) {
  return fmt::format("rank {} {}", c.rank, error ? "failed: " + error->message : end_of(c));
}

}  // namespace

Attempt::Attempt(const AgentOptions& o, JobState& job, const RoundPlace& place, int number,
                 int log_number)
    : o_(o),
      job_(job),
      place_(place),
      number_(number),
      log_number_(log_number),
      cpus_(bind_ranks()) {
  job_.store.begin(number);
  for (int i = 0; i < place.ranks; ++i) start(i);
  for (JobObserver* observer : o.observers) observer->started(number, place.world, pulses_.pages());
}

Attempt::~Attempt() {
  kill_groups();
  // Until here the pids still belong to the ranks: kill_groups() cannot hit another process.
  for (const RankProcess& c : children_) {
    job_.watchdog.remove_group(c.pid);
    waitpid(c.pid, nullptr, c.abandoned ? WNOHANG : 0);
  }
}

bool Attempt::run() {
  while (!over()) {
    std::vector<pollfd> fds{{job_.signals.fd(), POLLIN, 0}};
    for (const RankOutput& p : outputs_) fds.push_back({p.fd(), POLLIN, 0});
    if (job_.link) fds.push_back({job_.link->fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), 100);
    while (const int signal = job_.signals.next()) on_signal(signal);
    pump(fds);
    reap();
    if (const auto step = pulses_.new_spike())
      for (JobObserver* observer : o_.observers) observer->spiked(*step);
    if (job_.link) {
      report_straggler();
      take_news();
    }
    abandon_unkillable();
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

bool Attempt::ended_by_user() const {
  const auto lost_peer = [](const RankProcess& c) {
    const auto e = read_error_file(c.error_file);
    return e && e->kind == ErrorKind::comm;
  };
  return job_.ends.signal() && std::ranges::any_of(children_, ended_by_signal) &&
         std::ranges::all_of(children_, [&](const RankProcess& c) {
           return ended_well(c) || ended_by_signal(c) || lost_peer(c);
         });
}

RoundCause Attempt::cause() const {
  // A host that acts alone has printed it.
  if (hang_ && !has_own_error())
    return cause_with(hang_->culprit ? 0 : 2, hang_->culprit, hang_->message,
                      job_.link ? hang_text() : "");
  const RankProcess* first = nullptr;
  std::optional<RankError> error;
  // The rank with the lowest weight is the first cause. A rank that died without an error file
  // causes the errors of others; next come errors that are not about peers.
  const auto weight = [](const RankProcess& c, const std::optional<RankError>& e) {
    if (c.asked_to_end && !e) return 3;
    if (!e || e->kind == ErrorKind::crash) return 0;
    return e->kind == ErrorKind::comm ? 2 : 1;
  };
  for (const RankProcess& c : children_) {
    if (ended_well(c)) continue;
    auto e = read_error_file(c.error_file);
    const auto earlier = [&] {
      const int a = weight(c, e), b = weight(*first, error);
      return a != b ? a < b : e && error && e->time < error->time;
    };
    if (!first || earlier()) first = &c, error = std::move(e);
  }
  if (!first) return cause_with(3, {}, "", "");
  // A rank that was stopped cannot say why the others, also those of other hosts, wait for it in
  // vain.
  const bool waited =
      !stopped_.empty() && (error ? error->kind == ErrorKind::comm : first->asked_to_end);
  if (waited && !error)
    first = &*std::ranges::find(children_, stopped_.front(), &RankProcess::rank);
  const std::string message = waited ? stopped_text() : cause_of(*first, error);
  const std::string then = waited && error ? "\n  then " + cause_of(*first, error) : "";
  RoundCause cause =
      cause_with(waited ? 0 : weight(*first, error), waited ? stopped_.front() : first->rank,
                 message, "mtrain-launch: error: " + message + then + details_of(*first, error));
  const bool usage =
      first->status && WIFEXITED(*first->status) &&
      (WEXITSTATUS(*first->status) == kUsage || WEXITSTATUS(*first->status) == kNotRun);
  cause.exit_code = usage || (error && error->kind == ErrorKind::user) ? 2 : 1;
  return cause;
}

RoundCause Attempt::interruption() const {
  const int signal = job_.ends.signal();
  const std::string why = killed_by_user_ ? "second signal: the ranks were killed"
                                          : fmt::format("{} has ended the ranks", name_of(signal));
  RoundCause cause = cause_with(1, {}, why, "mtrain-launch: " + why);
  cause.exit_code = 128 + signal;
  cause.interrupted = true;
  return cause;
}

RoundCause Attempt::cause_with(int weight, std::optional<int> rank, const std::string& message,
                               const std::string& text) const {
  return {.weight = weight,
          .step = pulses_.last_step(),
          .rank = rank,
          .host = host_name(),
          .message = message,
          .text = text};
}

// Returns lines about the rank that is the cause, and about others that died.
std::string Attempt::details_of(const RankProcess& cause,
                                const std::optional<RankError>& error) const {
  std::string text;
  if (job_.link) text += fmt::format("\n  on host {} ({})", o_.node, host_name());
  if (error && !error->hint.empty()) text += "\n  hint: " + error->hint;
  if (error) text += lines_below(fmt::format("rank {} was at", cause.rank), error->frames);
  // A rank that died could not write them.
  const bool died = !error || error->kind == ErrorKind::crash;
  text += lines_below(fmt::format("last launches of rank {}", cause.rank),
                      died ? launch_lines(pulses_.state(cause.rank), kLaunches) : error->launches);
  for (const RankProcess& c : children_)
    if (&c != &cause && !ended_well(c) && !c.asked_to_end && !read_error_file(c.error_file))
      text += fmt::format("\n  then rank {} {}", c.rank, end_of(c));
  return text;
}

std::string Attempt::stopped_text() const {
  const PulseState state = pulses_.state(stopped_.front());
  return fmt::format(
      "rank {} on {} is stopped: {}", stopped_.front(), host_name(),
      state.phase == PulsePhase::none ? "it has not met the other ranks" : phase_text(state));
}

// Whether a rank has reported an error that is not about its peers. What hangs is then its end.
bool Attempt::has_own_error() const {
  return std::ranges::any_of(children_, [](const RankProcess& c) {
    const auto e = read_error_file(c.error_file);
    return e && e->kind != ErrorKind::comm;
  });
}

// Reports first: a rank that waits for a device or a disk may not end even when it is killed.
void Attempt::end_hang() {
  if (!has_own_error() && !job_.link) job_.console.say(hang_text());
  job_.store.fail(hang_->message);
  report_failure();
  kill_all(SIGKILL);
}

std::string Attempt::hang_text() const {
  std::string text =
      fmt::format("mtrain-launch: error: {}\n  hint: {}", hang_->message, hang_->hint);
  text += lines_below("the ranks of this host", hang_->ranks);
  if (hang_->culprit)
    text += lines_below(fmt::format("last launches of rank {}", *hang_->culprit), hang_->launches);
  return text;
}

// The first rank's output has no prefix, and its progress line is drawn as on a terminal.
bool Attempt::is_plain(const RankProcess& c) const { return c.local_rank == 0 && o_.node == 0; }

// Whether both streams of the child share a pipe or terminal, which keeps the order of its lines.
bool Attempt::one_output(const RankProcess& c) const {
  const int files = o_.redirects.of(c.local_rank) | o_.tee.of(c.local_rank);
  return is_plain(c) && job_.console.one_stream && (o_.log_dir.empty() || files == 0);
}

// Makes a pipe or terminal for a stream of the child. Returns the child's end; -1: the child
// writes to the launcher's own stream.
int Attempt::output(int stream, const RankProcess& c) {
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

std::map<std::string, std::string> Attempt::environment_of(const RankProcess& c) const {
  std::map<std::string, std::string> env;
  for (char** e = environ; *e; ++e)
    if (const char* equals = std::strchr(*e, '='))
      env[std::string(*e, size_t(equals - *e))] = equals + 1;
  // emplace() keeps variables that the user has set.
  for (const auto& [name, value] : o_.environment) env.emplace(name, value);
  env["RANK"] = std::to_string(c.rank);
  env["LOCAL_RANK"] = std::to_string(c.local_rank);
  env["WORLD_SIZE"] = std::to_string(place_.world);
  env["LOCAL_WORLD_SIZE"] = std::to_string(place_.ranks);
  env["GROUP_RANK"] = std::to_string(place_.group_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(place_.groups);
  env["MASTER_ADDR"] = o_.elects() ? job_.store.reached() : o_.master_addr;
  env["MASTER_PORT"] = std::to_string(job_.store.port());
  env["MTRAIN_JOB_ID"] = job_.id;
  env.erase(kSharedJobVariable);  // of an outer launcher
  if (!job_.shared_id.empty()) env[kSharedJobVariable] = job_.shared_id;
  env["MTRAIN_RESTART_COUNT"] = std::to_string(number_);
  env["MTRAIN_RESTARTS_LEFT"] = std::to_string(place_.restarts_left);
  env[kServedVariable] = job_.store.serves() || o_.elects() ? "1" : "0";
  if (job_.store.serves() || o_.elects()) env[kServedAtVariable] = job_.store.address().host;
  env[kJobNameVariable] = o_.run_id;
  env["MTRAIN_ERROR_FILE"] = c.error_file.string();
  env[kLauncherPid] = std::to_string(getpid());
  env["ROLE_NAME"] = o_.role;
  env["ROLE_RANK"] = env["RANK"];
  env["ROLE_WORLD_SIZE"] = env["WORLD_SIZE"];
  if (!o_.run_id.empty()) env["TORCHELASTIC_RUN_ID"] = o_.run_id;
  if (const std::string token = job_.store.token(); !token.empty())
    env.emplace(kTokenVariable, token);
  const int threads = cpus_.empty() ? std::max(1, usable_cores() / place_.ranks)
                                    : threads_of_rank(cpus_, c.local_rank);
  env.emplace("OMP_NUM_THREADS", std::to_string(threads));
  for (const char* of_outer_launcher : {kThreadsVariable, kHostCoresVariable})
    env.erase(of_outer_launcher);
  if (!cpus_.empty()) {
    env[kThreadsVariable] = std::to_string(threads);
    env[kHostCoresVariable] = std::to_string(usable_cores());
    env.emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");  // as read_host_cpus() counts GPUs
  }
  env.erase("TORCHELASTIC_USE_AGENT_STORE");  // an outer torchrun may have set it
  return env;
}

// Divides the CPUs that this host has now, and prints which CPUs the ranks have, if that is new.
// They sufficed when the job began. If they do not any more, the ranks start unbound.
std::vector<CpuList> Attempt::bind_ranks() {
  if (o_.numa_binding == NumaBinding::none) return {};
  std::vector<CpuList> cpus;
  std::string text;
  try {
    const HostCpus host = read_host_cpus(allowed_cpus(), visible_devices_of_ranks(o_));
    cpus = cpus_of_ranks(host, o_.numa_binding, place_.ranks);
    if (const std::string warning = unknown_gpus_text(host, place_.ranks); !warning.empty())
      text = fmt::format("mtrain-launch: warning: {}\n", warning);
    text += "mtrain-launch: binding: " + binding_text(cpus, place_.first_rank);
  } catch (const Error& e) {
    text = fmt::format("mtrain-launch: warning: {}; the ranks are not bound", e.message());
  }
  if (std::exchange(job_.told_binding, text) != text) job_.console.say(text);
  return cpus;
}

void Attempt::start(int local_rank) {
  RankProcess c;
  c.local_rank = local_rank;
  c.rank = place_.first_rank + local_rank;
  c.error_file = folder_.path() / fmt::format("rank-{}.json", c.rank);
  const int pulse = pulses_.add(c.rank);
  if (pulse < 0 && !std::exchange(job_.told_no_pulse, true))
    job_.console.say(fmt::format(
        "mtrain-launch: warning: ranks cannot be watched: this system makes no file in memory "
        "(memfd_create: {}); ranks that hang are noticed after comm.timeout_s, and `mtrain status` "
        "and --metrics_port do not show ranks",
        std::strerror(errno)));
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
  const std::optional<cpu_set_t> cpus =
      cpus_.empty() ? std::nullopt : std::optional(set_of(cpus_[size_t(local_rank)]));
  const std::string not_bound = cpus ? fmt::format("rank {} cannot be bound to {}", c.rank,
                                                   cpus_text(cpus_[size_t(local_rank)]))
                                     : "";
  const std::string not_run = "cannot run " + o_.command.front();
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
    if (cpus && sched_setaffinity(0, sizeof *cpus, &*cpus) != 0)
      end_child(not_bound.c_str(), kNotBound);
    execvpe(argv[0], argv.data(), envp.data());
    end_child(not_run.c_str(), kNotRun);
  }
  setpgid(c.pid, c.pid);  // the child does this too; either may be first
  pulses_.started(c.rank, c.pid);
  if (out >= 0) close(out);
  if (err >= 0 && err != out) close(err);
  children_.push_back(std::move(c));
}

void Attempt::pump(const std::vector<pollfd>& fds) {
  std::vector<RankOutput> open;
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (!fds[i + 1].revents || outputs_[i].pump()) open.push_back(std::move(outputs_[i]));
  outputs_.swap(open);
}

void Attempt::on_signal(int signal) {
  if (signal == SIGWINCH) {
    const int terminal = isatty(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO;
    for (const RankOutput& p : outputs_) p.resize(terminal);
    return;
  }
  switch (job_.ends.add(signal, Clock::now(), job_.signals.from_keyboard())) {
    case EndRequests::Kind::repeat: return;
    case EndRequests::Kind::second:
      killed_by_user_ = true;
      if (job_.link) job_.link->change([](LauncherNote& note) { note.second = true; });
      return kill_all(SIGKILL);
    case EndRequests::Kind::first: break;
  }
  if (job_.link) job_.link->change([&](LauncherNote& note) { note.signal = signal; });
  end_by(signal, "");
}

// Makes the ranks save and end. `whose`: begins the line that is printed.
void Attempt::end_by(int signal, const std::string& whose) {
  // The first rank of a training reports by itself.
  job_.console.say(fmt::format("mtrain-launch: {}{}: the ranks are asked to {}", whose,
                               name_of(signal),
                               o_.unsaved ? "save and end" : "end; a second signal kills them"));
  pass_on(signal);
  // The sender of the signal may have signalled the ranks before.
  if (std::ranges::all_of(children_, [](const RankProcess& c) {
        return !c.status || ended_well(c) || ended_by_signal(c);
      }))
    failed_at_.reset();
}

// A shell between the launcher and a rank does not forward signals. Other programs of the job,
// such as `tee` and profilers, get no signal: they are needed until the ranks have ended.
void Attempt::pass_on(int signal) {
  sigval value{};
  value.sival_int = signal;  // the signal that the ranks name in messages
  const auto tell = [&](pid_t pid) {
    // The system limits the number of queued signals with a value.
    return sigqueue(pid, SIGTERM, value) == 0 || (errno == EAGAIN && kill(pid, SIGTERM) == 0);
  };
  std::set<pid_t> signalled;
  for (const RankProcess& c : children_)
    if (!c.status && tell(c.pid)) signalled.insert(c.pid);
  for (const JobProcess& p : job_processes(job_.id))
    if ((p.program == "mtrain" || p.program == "mtrain-launch") && signalled.insert(p.pid).second)
      tell(p.pid);
}

void Attempt::reap() {
  for (RankProcess& c : children_) {
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
    report_failure();
  }
}

// Makes the ranks of the other hosts end, too.
void Attempt::report_failure() {
  if (job_.link)
    job_.link->change([](LauncherNote& note) { note.state = LauncherNote::State::failed; });
}

// The rank may be one of another host: rank 0 compares all of them.
void Attempt::report_straggler() {
  if (!o_.replaces_stragglers) return;
  if (const auto rank = pulses_.new_straggler())
    job_.link->change([&](LauncherNote& note) { note.straggler = rank; });
}

// Follows the news that concern a running start, and leaves all others.
void Attempt::take_news() {
  using Kind = LauncherNews::Kind;
  job_.link->clear_event();
  while (const auto news = job_.link->news()) {
    const bool lines_alone = news->kind == Kind::cause && !news->cause;
    const bool ends =
        (news->kind == Kind::end || news->kind == Kind::kill) && news->round == number_;
    const bool of_other = is_of_other(*news, job_.link->id());
    if (!lines_alone && !ends && !of_other && news->kind != Kind::signal) {
      if (!killed_at_) kill_all(SIGKILL);  // the others do not wait for this host any more
      return;
    }
    for (const std::string& line : news->lines) job_.console.say(line);
    job_.link->drop_news();
    if (ends && news->kind == Kind::kill) {
      killed_by_user_ = killed_by_user_ || job_.ends.signal() != 0;
      kill_all(SIGKILL);
    }
    if (ends && !failed_at_) {
      failed_at_ = Clock::now();
      if (news->kind == Kind::end) stopped_ = pulses_.stopped();
    }
    if (news->kind == Kind::signal && job_.ends.signal() == 0 &&
        job_.ends.add_of_other(news->signal, Clock::now()) == EndRequests::Kind::first)
      end_by(news->signal, "another host got ");
  }
  if (!killed_at_ && !job_.link->lost().empty()) kill_all(SIGKILL);
}

// Whether mtrain is still running (it saves) after the shell that started it was ended by a
// signal.
bool Attempt::keeps_running(RankProcess& c) {
  if (Clock::now() < c.next_look) return true;
  c.next_look = Clock::now() + 100ms;
  return std::ranges::any_of(job_processes(job_.id), [&](const JobProcess& p) {
    return p.rank == c.rank && p.program == "mtrain";
  });
}

// Makes the other ranks end after a failure.
void Attempt::press() {
  const auto since = Clock::now() - *failed_at_;
  if (since > kUntilKill) return kill_all(SIGKILL);
  if (since > kUntilTerm) kill_all(SIGTERM);
}

void Attempt::kill_all(int signal) {
  for (RankProcess& c : children_) {
    if (c.status || (c.asked_to_end && signal != SIGKILL)) continue;
    c.asked_to_end = true;
    if (signal != SIGKILL) kill(c.pid, signal);
  }
  if (signal != SIGKILL) return;
  if (!killed_at_) killed_at_ = Clock::now();
  kill_groups();
  kill_job_processes(job_.id);
}

// A rank that waits for a device or a disk may not end even when it is killed. It never runs its
// own code again, therefore the others need not wait for it.
void Attempt::abandon_unkillable() {
  if (!killed_at_ || Clock::now() - *killed_at_ < kUntilAbandoned) return;
  for (RankProcess& c : children_) {
    if (c.status || c.abandoned) continue;
    c.abandoned = true;
    pulses_.ended(c.rank);
    job_.console.say(
        fmt::format("mtrain-launch: warning: rank {} (pid {}) does not end although it was killed: "
                    "it waits for a device or a disk of this host",
                    c.rank, c.pid));
  }
}

// Kills all processes of all ranks, including those that dead ranks have left. The pids still
// belong to the ranks, since nobody has waited for them.
void Attempt::kill_groups() {
  for (const RankProcess& c : children_) kill(-c.pid, SIGKILL);
}

bool Attempt::over() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const RankProcess& c) { return c.status || c.abandoned; });
}

}  // namespace mtrain::launch
