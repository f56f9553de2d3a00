// A command of the user that learns what happens to a job (launch.on_event).
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace mtrain::launch {

// What has happened. Members that are unknown are left out of the JSON.
struct JobEvent {
  std::string event;  // start, spike, failure, restart, end
  std::string job, name, run_dir;
  int node = 0, ranks = 1;  // this host's number; ranks of the start
  int start = 0;            // number of the start of all ranks, from 0
  std::optional<int64_t> step;
  std::optional<int> culprit;  // a rank
  std::string message;
  std::optional<int> exit_code;
  std::optional<double> delay_s;  // until the restart
};
// Returns one line of JSON, with the time and the host.
std::string event_json(const JobEvent& event);

// Runs the command once for each event, one after the other, in a thread. The command gets the JSON
// as its standard input; it has no other output than its exit code.
class EventCommand {
 public:
  static constexpr std::chrono::milliseconds kPatience{10000};  // then the command is killed
  // Beyond them the oldest `spike` is dropped, else the oldest event: `end` is the last one.
  static constexpr size_t kMostPending = 64;

  // `complain` is called from the thread: for the first event for which the command fails, and for
  // the first one that is dropped.
  EventCommand(std::vector<std::string> command, std::function<void(const std::string&)> complain,
               std::chrono::milliseconds patience = kPatience);
  // Waits until the command has had all events, for at most the patience.
  ~EventCommand();
  EventCommand(const EventCommand&) = delete;
  EventCommand& operator=(const EventCommand&) = delete;

  void send(const JobEvent& event);  // returns at once
  size_t pending();                  // events that the command has not got yet

 private:
  void serve();
  std::string run(const std::string& text);  // returns why it failed, or ""

  const std::vector<std::string> command_;
  const std::function<void(const std::string&)> complain_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Pending {
    bool spike = false;
    std::string text;
  };
  std::deque<Pending> pending_;
  bool closing_ = false, dropped_ = false;
  std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::time_point::max();
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace mtrain::launch
