#include "launch/event_command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/memory_file.h"

extern char** environ;

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;

// Starts the command in a process group of its own. Returns 0, or the error's number.
int spawn_command(const std::vector<std::string>& command, int input, pid_t& pid) {
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The launcher blocks and ignores signals, which the command would inherit.
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (const int s : {SIGPIPE, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2})
    sigaddset(&usual, s);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

std::string event_json(const JobEvent& e) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json j;
  j["event"] = e.event;
  j["time"] = double(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000;
  if (!e.job.empty()) j["job"] = e.job;
  if (!e.name.empty()) j["name"] = e.name;
  if (!e.run_dir.empty()) j["run_dir"] = e.run_dir;
  j["host"] = host_name();
  j["node"] = e.node;
  j["ranks"] = e.ranks;
  j["start"] = e.start;
  if (e.step) j["step"] = *e.step;
  if (e.culprit) j["culprit"] = *e.culprit;
  if (!e.message.empty()) j["message"] = e.message;
  if (e.exit_code) j["exit_code"] = *e.exit_code;
  if (e.delay_s) j["delay_s"] = *e.delay_s;
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

EventCommand::EventCommand(std::vector<std::string> command,
                           std::function<void(const std::string&)> complain,
                           std::chrono::milliseconds patience)
    : command_(std::move(command)),
      complain_(std::move(complain)),
      patience_(patience),
      thread_([this] { serve(); }) {}

EventCommand::~EventCommand() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    until_ = Clock::now() + patience_;
    changed_.notify_all();
  }
  thread_.join();
}

void EventCommand::send(const JobEvent& event) {
  Pending next{.spike = event.event == "spike", .text = event_json(event)};
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(next));
  if (pending_.size() > kMostPending) {
    const auto spike = std::ranges::find(pending_, true, &Pending::spike);
    pending_.erase(spike == pending_.end() ? pending_.begin() : spike);
    dropped_ = true;
  }
  changed_.notify_all();
}

size_t EventCommand::pending() {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

void EventCommand::serve() {
  bool complained = false, told_drop = false;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !pending_.empty(); });
    if (pending_.empty() || Clock::now() >= until_) return;
    const std::string text = std::move(pending_.front().text);
    pending_.pop_front();
    const bool first_drop = dropped_ && !std::exchange(told_drop, true);
    lock.unlock();
    if (first_drop && complain_)
      complain_(fmt::format("launch.on_event: {} takes too long: some events are dropped",
                            command_.front()));
    const std::string why = run(text);
    if (!why.empty() && !std::exchange(complained, true) && complain_)
      complain_(fmt::format("launch.on_event: {} {}", command_.front(), why));
    lock.lock();
  }
}

std::string EventCommand::run(const std::string& text) {
  // Memory that the command reads as a file: it may read it late, in part, or not at all.
  const int input = memory_file("mtrain-event");
  if (input < 0 || write(input, text.data(), text.size()) != ssize_t(text.size())) {
    const int why = errno;
    if (input >= 0) close(input);
    return fmt::format("was not started: {}", std::strerror(why));
  }
  lseek(input, 0, SEEK_SET);
  pid_t pid = -1;
  const int error = spawn_command(command_, input, pid);
  close(input);
  if (error != 0) return fmt::format("was not started: {}", std::strerror(error));
  const auto began = Clock::now();
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    std::unique_lock lock(mutex_);
    if (Clock::now() - began < patience_ && Clock::now() < until_) {
      changed_.wait_for(lock, std::chrono::milliseconds(20), [] { return false; });
      continue;
    }
    kill(-pid, SIGKILL);
    waitpid(pid, &status, 0);
    return fmt::format("was killed after {:.1f} s",
                       std::chrono::duration<double>(Clock::now() - began).count());
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return WIFEXITED(status) ? fmt::format("ended with exit code {}", WEXITSTATUS(status))
                           : fmt::format("was killed by signal {}", WTERMSIG(status));
}

}  // namespace mtrain::launch
