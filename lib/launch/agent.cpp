#include "launch/agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/ignore_sigpipe.h"
#include "launch/error_file.h"
#include "launch/host_gpus.h"
#include "launch/job_token.h"

extern char** environ;

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

// After the first failure the other ranks notice that their peer is gone, and end. Ranks that have
// not ended after kUntilTerm get SIGTERM, and after kUntilKill SIGKILL: all within 5 s.
constexpr auto kUntilTerm = 2s, kUntilKill = 4s;

constexpr int kUsage = 2, kNotRun = 127;  // exit codes of a rank that a restart would repeat

void say(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const auto n = write(STDERR_FILENO, line.data(), line.size());
}

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  socklen_t size = sizeof a;
  uint16_t port = 0;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&a), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0)
    port = ntohs(a.sin_port);
  if (fd >= 0) close(fd);
  if (port == 0) throw RunError(fmt::format("no free port: {}", std::strerror(errno)));
  return port;
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A rank's output that the agent passes on: whole lines, each prefixed with the rank.
class Pipe {
 public:
  Pipe(int fd, int to, std::string prefix, int file, bool show)
      : fd_(fd), to_(to), file_(file), prefix_(std::move(prefix)), show_(show) {}
  Pipe(Pipe&& o) noexcept
      : fd_(std::exchange(o.fd_, -1)),
        to_(o.to_),
        file_(std::exchange(o.file_, -1)),
        prefix_(std::move(o.prefix_)),
        show_(o.show_),
        line_(std::move(o.line_)) {}
  Pipe& operator=(Pipe&&) = delete;
  ~Pipe() {
    flush();
    if (fd_ >= 0) close(fd_);
    if (file_ >= 0) close(file_);
  }
  int fd() const { return fd_; }

  // Passes on what has arrived. Returns false at the end of the output.
  bool pump() {
    char buffer[16384];
    const ssize_t n = read(fd_, buffer, sizeof buffer);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n == 0) return false;
    if (file_ >= 0) [[maybe_unused]]
      const auto written = write(file_, buffer, size_t(n));
    if (!show_) return true;
    for (const char c : std::string_view(buffer, size_t(n))) {
      line_ += c;
      if (c == '\n' || line_.size() > 8000) flush();
    }
    return true;
  }

 private:
  void flush() {
    if (line_.empty()) return;
    const std::string out = prefix_ + line_ + (line_.back() == '\n' ? "" : "\n");
    [[maybe_unused]] const auto n = write(to_, out.data(), out.size());
    line_.clear();
  }

  int fd_, to_, file_;
  std::string prefix_;
  bool show_;
  std::string line_;
};

struct Child {
  int rank = 0, local_rank = 0;
  pid_t pid = -1;
  fs::path error_file;
  std::optional<int> status;  // as waitpid gives it
  bool told_to_end = false;   // the agent ended it, so that its end explains no failure
};

bool ended_well(const Child& c) {
  return c.status && WIFEXITED(*c.status) && WEXITSTATUS(*c.status) == 0;
}

// The signals that the agent handles, as a file descriptor to poll.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set_, s);
    // Under nohup SIGHUP is ignored and must stay so: once blocked, it would arrive through the
    // descriptor.
    struct sigaction hang_up;
    sigaction(SIGHUP, nullptr, &hang_up);
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);
    sigprocmask(SIG_BLOCK, &set_, &before_);
    fd_ = signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Signals() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }
  // Returns the next signal other than SIGCHLD; 0: none has arrived.
  int next() {
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) return int(info.ssi_signo);
    return 0;
  }

 private:
  const IgnoreSigpipe pipes_;  // a reader that is gone (`| tee log`) must not end the ranks
  sigset_t set_, before_;
  int fd_;
};

// A temporary folder, which the destructor removes.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "mtrain-launch-XXXXXX").string();
    if (!mkdtemp(name.data())) throw RunError(fmt::format("{}: {}", name, std::strerror(errno)));
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// One start of all ranks of this node.
class Attempt {
 public:
  Attempt(const AgentOptions& o, const std::string& job_id, int number, Signals& signals)
      : o_(o), job_id_(job_id), number_(number), signals_(signals) {
    port_ = o.master_port ? o.master_port : free_port();
    for (int i = 0; i < o.ranks_per_node; ++i) start(i);
  }
  ~Attempt() {
    kill_groups();
    // Until here the ranks' pids were theirs, and kill_groups() could hit no other process.
    for (Child& c : children_) waitpid(c.pid, nullptr, 0);
  }

  // Watches the ranks until all have ended. Returns whether every rank ended well.
  bool run() {
    while (!over()) {
      std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
      for (const Pipe& p : pipes_) fds.push_back({p.fd(), POLLIN, 0});
      poll(fds.data(), fds.size(), 100);
      pump(fds);
      while (const int signal = signals_.next()) on_signal(signal);
      reap();
      if (failed_at_) press();
    }
    kill_groups();  // processes that a rank has left behind would go on writing
    // Passes on what the ranks wrote last.
    for (Pipe& p : pipes_) {
      fcntl(p.fd(), F_SETFL, O_NONBLOCK);
      while (pump_some(p)) {
      }
    }
    return std::all_of(children_.begin(), children_.end(), ended_well);
  }

  int signal() const { return signal_; }
  bool killed_by_user() const { return signals_seen_ > 1; }

  // Prints why the job failed, and returns the exit code that follows from it.
  int report() const {
    const Child* cause = nullptr;
    std::optional<RankError> error;
    // The lowest weight is the first cause. A rank that died without an error file explains the
    // errors of others; next come errors that are not about peers.
    const auto weight = [](const Child& c, const std::optional<RankError>& e) {
      if (c.told_to_end && !e) return 3;
      if (!e) return 0;
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
    if (!cause) return 1;
    std::string text = fmt::format("mtrain-launch: error: rank {} {}", cause->rank,
                                   error ? "failed: " + error->message : end_of(*cause));
    if (error && !error->hint.empty()) text += "\n  hint: " + error->hint;
    if (error && !error->launches.empty()) {
      text += fmt::format("\n  last launches of rank {}:", cause->rank);
      for (const auto& line : error->launches) text += "\n    " + line;
    }
    say(text);
    for (const Child& c : children_)
      if (&c != cause && !ended_well(c) && !c.told_to_end && !read_error_file(c.error_file))
        say(fmt::format("  then rank {} {}", c.rank, end_of(c)));
    const bool usage =
        cause->status && WIFEXITED(*cause->status) &&
        (WEXITSTATUS(*cause->status) == kUsage || WEXITSTATUS(*cause->status) == kNotRun);
    return usage || (error && error->kind == ErrorKind::user) ? 2 : 1;
  }

 private:
  static std::string end_of(const Child& c) {
    if (!c.status) return "did not end";
    if (WIFSIGNALED(*c.status))
      return fmt::format("(pid {}) was killed by signal {} ({})", c.pid, WTERMSIG(*c.status),
                         strsignal(WTERMSIG(*c.status)));
    return fmt::format("(pid {}) ended with exit code {}", c.pid, WEXITSTATUS(*c.status));
  }

  // Makes a pipe for a stream of the child and returns the child's end; -1: the child writes to the
  // agent's own stream.
  int output(int stream, const Child& c) {
    const int bit = stream == STDOUT_FILENO ? 1 : 2;
    const bool to_file = !o_.log_dir.empty() && ((o_.redirects | o_.tee) & bit);
    const bool show = !(o_.redirects & bit) || (o_.tee & bit);
    // Rank 0 draws its progress line on the terminal itself.
    if (c.local_rank == 0 && o_.node == 0 && !to_file) return -1;
    int file = -1;
    if (to_file) {
      const fs::path folder =
          o_.log_dir / fmt::format("attempt_{}", number_) / fmt::format("rank_{}", c.rank);
      fs::create_directories(folder);
      const fs::path path = folder / (bit == 1 ? "stdout.log" : "stderr.log");
      file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
      if (file < 0) throw UserError(fmt::format("{}: {}", path.string(), std::strerror(errno)));
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) throw RunError(fmt::format("pipe: {}", std::strerror(errno)));
    pipes_.emplace_back(ends[0], stream, fmt::format("[rank {}] ", c.rank), file, show);
    return ends[1];
  }

  std::map<std::string, std::string> environment_of(const Child& c) const {
    std::map<std::string, std::string> env;
    for (char** e = environ; *e; ++e)
      if (const char* equals = std::strchr(*e, '='))
        env[std::string(*e, size_t(equals - *e))] = equals + 1;
    // emplace() keeps what the user has set.
    for (const auto& [name, value] : o_.environment) env.emplace(name, value);
    const int world = o_.ranks_per_node * o_.nodes;
    env["RANK"] = std::to_string(c.rank);
    env["LOCAL_RANK"] = std::to_string(c.local_rank);
    env["WORLD_SIZE"] = std::to_string(world);
    env["LOCAL_WORLD_SIZE"] = std::to_string(o_.ranks_per_node);
    env["GROUP_RANK"] = std::to_string(o_.node);
    env["MASTER_ADDR"] = o_.master_addr;
    env["MASTER_PORT"] = std::to_string(port_);
    env["MTRAIN_JOB_ID"] = job_id_;
    env["MTRAIN_RESTART_COUNT"] = std::to_string(number_);
    env["MTRAIN_ERROR_FILE"] = c.error_file.string();
    if (o_.nodes == 1) env.emplace(kTokenVariable, token_.hex());
    env.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / o_.ranks_per_node)));
    env.erase("TORCHELASTIC_USE_AGENT_STORE");  // an outer torchrun may have set it
    return env;
  }

  void start(int local_rank) {
    Child c;
    c.local_rank = local_rank;
    c.rank = o_.node * o_.ranks_per_node + local_rank;
    c.error_file = folder_.path / fmt::format("rank-{}.json", c.rank);
    const int out = output(STDOUT_FILENO, c), err = output(STDERR_FILENO, c);
    std::vector<std::string> arguments = o_.command, variables;
    for (const auto& [name, value] : environment_of(c))
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
      setpgid(0, 0);  // so that it can be killed with all that it starts
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != agent) _exit(127);  // the agent has died in between
      if (out >= 0) dup2(out, STDOUT_FILENO);
      if (err >= 0) dup2(err, STDERR_FILENO);
      ::signal(SIGPIPE, SIG_DFL);
      sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
      execvpe(argv[0], argv.data(), envp.data());
      const char* why = strerrordesc_np(errno);
      for (const char* part : {"mtrain-launch: cannot run ", static_cast<const char*>(argv[0]),
                               ": ", why ? why : "?", "\n"})
        [[maybe_unused]] const auto n = write(STDERR_FILENO, part, std::strlen(part));
      _exit(kNotRun);
    }
    setpgid(c.pid, c.pid);  // the child does this too; either may be first
    if (out >= 0) close(out);
    if (err >= 0) close(err);
    children_.push_back(std::move(c));
  }

  static bool pump_some(Pipe& p) {
    pollfd f{p.fd(), POLLIN, 0};
    return poll(&f, 1, 0) > 0 && p.pump();
  }

  void pump(const std::vector<pollfd>& fds) {
    std::vector<size_t> ended;
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents && !pipes_[i - 1].pump()) ended.push_back(i - 1);
    std::vector<Pipe> open;
    for (size_t i = 0; i < pipes_.size(); ++i)
      if (std::find(ended.begin(), ended.end(), i) == ended.end())
        open.push_back(std::move(pipes_[i]));
    pipes_.swap(open);
  }

  void on_signal(int signal) {
    signal_ = signal;
    if (++signals_seen_ > 1) return kill_all(SIGKILL);
    for (Child& c : children_)
      if (!c.status) kill(c.pid, SIGTERM);
  }

  void reap() {
    for (Child& c : children_) {
      siginfo_t info{};
      if (c.status || waitid(P_PID, id_t(c.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != c.pid)
        continue;
      // The status in the form that waitpid would return.
      c.status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
      if (!ended_well(c) && !failed_at_) failed_at_ = Clock::now();
    }
  }

  // Makes the other ranks end after a failure.
  void press() {
    const auto since = Clock::now() - *failed_at_;
    if (since > kUntilKill) return kill_all(SIGKILL);
    if (since > kUntilTerm) kill_all(SIGTERM);
  }

  void kill_all(int signal) {
    for (Child& c : children_) {
      if (c.status || (c.told_to_end && signal != SIGKILL)) continue;
      c.told_to_end = true;
      if (signal != SIGKILL) kill(c.pid, signal);
    }
    if (signal == SIGKILL) kill_groups();
  }

  // Kills all processes of all ranks, also those that dead ranks have left behind. The pids still
  // belong to the ranks, since nobody has waited for them.
  void kill_groups() {
    for (const Child& c : children_) kill(-c.pid, SIGKILL);
  }

  bool over() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.status.has_value(); });
  }

  const AgentOptions& o_;
  const std::string& job_id_;
  const int number_;
  Signals& signals_;
  uint16_t port_ = 0;
  const Token token_ = Token::random();
  Folder folder_;
  std::vector<Child> children_;
  std::vector<Pipe> pipes_;
  std::optional<Clock::time_point> failed_at_;
  int signal_ = 0, signals_seen_ = 0;
};

}  // namespace

int ranks_per_node(const std::string& text) {
  if (text == "cpu") return usable_cores();
  const int gpus = int(visible_gpus().size());
  if (text == "gpu") {
    if (gpus == 0)
      throw UserError("--nproc_per_node=gpu: this host shows no GPU", "use cpu or a number");
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

int run_agent(const AgentOptions& options) {
  Signals signals;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string job_id = fmt::format("{}-{}-{}", host_name(), getpid(), now.count());
  for (int number = 0;; ++number) {
    Attempt attempt(options, job_id, number, signals);
    if (attempt.run()) return 0;
    if (attempt.killed_by_user()) return 128 + attempt.signal();
    const int code = attempt.report();
    // Wrong input stays wrong after a restart, and a job that was told to end is not restarted.
    if (code == 2 || attempt.signal() || number >= options.max_restarts) return code;
    say(fmt::format("mtrain-launch: starting all ranks again ({} of {})", number + 1,
                    options.max_restarts));
  }
}

}  // namespace mtrain::launch
