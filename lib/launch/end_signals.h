// The signals that request a job to save and end, for the launcher and the ranks.
#pragma once
#include <chrono>
#include <csignal>
#include <string>

namespace mtrain::launch {

// Slurm's --signal sends SIGUSR1 or SIGUSR2 before the time limit; Ctrl-\ is SIGQUIT.
inline constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Signals that arrive within this time of the first one belong to the same request: `timeout`,
// Slurm and a closed terminal signal the launcher and the ranks, or send two signals together.
inline constexpr std::chrono::milliseconds kSameRequest{1000};
// A key that is held repeats about every 30 ms. It is one request until its release.
inline constexpr std::chrono::milliseconds kKeyRepeat{200};

// Whether a signal is a second request, and not a part of the first. The times are those since the
// first signal and since the previous one.
inline bool is_second_request(std::chrono::milliseconds since_first,
                              std::chrono::milliseconds since_last, bool from_keyboard) {
  return since_first >= kSameRequest && (!from_keyboard || since_last >= kKeyRepeat);
}

// The variable that has the launcher's pid.
inline constexpr const char* kLauncherPid = "MTRAIN_LAUNCHER_PID";

// Returns the signal's name in messages: "Ctrl-C", "signal 15".
inline std::string name_of(int signal) {
  if (signal == SIGINT) return "Ctrl-C";
  if (signal == SIGQUIT) return "Ctrl-\\";
  return "signal " + std::to_string(signal);
}

inline bool is_end_signal(int signal) {
  for (const int s : kEndSignals)
    if (s == signal) return true;
  return false;
}

// Whether a key on the terminal has caused the signal. `code` is its si_code.
inline bool is_keystroke(int signal, int code) {
  return (signal == SIGINT || signal == SIGQUIT) && code == SI_KERNEL;
}

// Whether the signal stays ignored if the parent of this process ignores it, as nohup does with
// SIGHUP. SIGINT does not: shells ignore it for background processes.
inline bool may_be_ignored(int signal) { return signal != SIGINT && signal != SIGTERM; }

}  // namespace mtrain::launch
