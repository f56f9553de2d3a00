// Options of the machine: the device that a rank computes on, how ranks communicate, traces, and
// injected faults.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/comm_backend.h"
#include "base/device_kind.h"
#include "base/fault_kind.h"
#include "base/step_range.h"

namespace mtrain::plan {

struct DevicePlan {
  DeviceKind kind = DeviceKind::cpu;
  int64_t threads = 0;         // threads of a CPU rank; 0: the host's cores divided by its ranks
  int64_t norm_sm_margin = 0;  // multiprocessors of a GPU that norms leave to other work
  int64_t gemm_sm_margin = 0;  // the same for GEMMs; those of tensor parallelism may have their own
  // Kernels that allow it begin on a GPU before the previous kernel of their stream has ended.
  bool dependent_launch = false;
  bool stream_sanitizer = false;
  double compute_slowdown = 1;    // computations on a CPU take this many times as long
  bool deterministic = false;     // runs are equal bit for bit, but slower
  bool own_attention = false;     // attention on a GPU does not use cuDNN
  bool own_grouped_gemm = false;  // GEMMs of experts on a GPU do not use CUTLASS
  bool nvtx = false;              // a profiler on a GPU sees passes, layers and launches by name
  // Environment variables that the device's library reads when it starts; communication may start
  // it before the device is opened. Variables that the user has set stay.
  std::map<std::string, std::string> environment;
};

struct CommOptions {
  CommBackend backend = CommBackend::automatic;  // never `thread`: ranks are processes
  double timeout_s = 600;
  double link_latency_us = 0, link_gbps = 0;  // an emulated slower link; 0: none
  std::vector<std::string> link_streams;      // streams that use this link; empty: all
};

// A fault that one rank injects into itself.
struct FaultOptions {
  enum class Moment { of_phase, launch, save, save_consolidated };
  FaultKind kind = FaultKind::kill;
  std::optional<FaultPhase> phase;  // absent for `slow`, and for other moments
  Moment moment = Moment::of_phase;
  std::string launch;  // the rank fails during the launch of this name
  // The moment of a save (checkpoint::SaveOptions::on_commit) at which the rank fails; a number
  // follows the name if it is not the first of this name. Empty: before rank 0 commits, or before
  // another rank writes.
  std::string of_save;
  int64_t rank = 0, step = 1;
  double factor = 1;  // of `slow` and `spike`
};

struct DebugOptions {
  std::optional<std::string> trace;  // the file to which a trace of every launch is written
  StepRange trace_steps;             // the steps that it has; by default all
  std::vector<FaultOptions> faults;
};

}  // namespace mtrain::plan
