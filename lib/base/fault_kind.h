// What goes wrong on purpose in a rank, and during what (debug.fault).
#pragma once
#include <array>

#include "base/enum_name.h"

namespace mtrain {

enum class FaultKind {
  kill,             // SIGKILL
  stop,             // SIGSTOP
  segfault,         // an access to an invalid address
  abort,            // std::abort()
  exception,        // an error of the rank's main thread
  async_exception,  // an exception of another thread, which nothing catches
  device_error,     // a launch fails on the device
  slow,             // computations take a multiple of their time, from this step on
  stuck_stream,     // a launch never ends
  disconnect,       // the rank's connections to the others are cut
  io_error,         // a file cannot be read or written
  nan,              // a launch writes NaN
  spike,            // gradients are multiplied
  node              // the launcher of the rank's host is killed
};
constexpr auto enum_names(FaultKind) {
  return std::array{EnumName{FaultKind::kill, "kill"},
                    EnumName{FaultKind::stop, "stop"},
                    EnumName{FaultKind::segfault, "segfault"},
                    EnumName{FaultKind::abort, "abort"},
                    EnumName{FaultKind::exception, "exception"},
                    EnumName{FaultKind::async_exception, "async_exception"},
                    EnumName{FaultKind::device_error, "device_error"},
                    EnumName{FaultKind::slow, "slow"},
                    EnumName{FaultKind::stuck_stream, "stuck_stream"},
                    EnumName{FaultKind::disconnect, "disconnect"},
                    EnumName{FaultKind::io_error, "io_error"},
                    EnumName{FaultKind::nan, "nan"},
                    EnumName{FaultKind::spike, "spike"},
                    EnumName{FaultKind::node, "node"}};
}

enum class FaultPhase {
  rendezvous,  // before the rank connects with the others
  load,        // before a checkpoint or weights are read
  forward,     // the first launch of this kind in the step
  backward,
  collective,
  optimizer,
  evaluation,  // before the evaluation after the step; its first launch for a fault of a launch
  staging,     // the save of the step: copies of a save in the background
  write,       // before a rank writes its files
  commit,      // rank 0 has all files, and other ranks have written theirs
  end          // after the last step
};
constexpr auto enum_names(FaultPhase) {
  return std::array{EnumName{FaultPhase::rendezvous, "rendezvous"},
                    EnumName{FaultPhase::load, "load"},
                    EnumName{FaultPhase::forward, "forward"},
                    EnumName{FaultPhase::backward, "backward"},
                    EnumName{FaultPhase::collective, "collective"},
                    EnumName{FaultPhase::optimizer, "optimizer"},
                    EnumName{FaultPhase::evaluation, "evaluation"},
                    EnumName{FaultPhase::staging, "staging"},
                    EnumName{FaultPhase::write, "write"},
                    EnumName{FaultPhase::commit, "commit"},
                    EnumName{FaultPhase::end, "end"}};
}

// Whether a rank is within a step's launches then.
constexpr bool has_launches(FaultPhase phase) {
  return phase >= FaultPhase::forward && phase <= FaultPhase::optimizer;
}
// Whether the fault is one of a launch: it has an effect when the device runs it.
constexpr bool of_launch(FaultKind kind) {
  return kind == FaultKind::device_error || kind == FaultKind::stuck_stream ||
         kind == FaultKind::nan;
}

}  // namespace mtrain
