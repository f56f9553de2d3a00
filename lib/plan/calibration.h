// A calibration: what launches and communication take on a machine, from a file that
// `mtrain calibrate` writes.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "recipe/load/diagnostics.h"

namespace mtrain::plan {

using recipe::Diagnostics;

// What a launch of one size takes.
struct LaunchPoint {
  double flops = 0, read = 0, written = 0;  // bytes of the device's memory
  double seconds = 0;                       // median over the rounds
  double spread = 0;                        // the middle half of the rounds, relative
};

// Launches of one name (device::LaunchInfo) whose first operand has this type.
struct LaunchTimes {
  std::string name;
  DType dtype = DType::f32;
  std::vector<LaunchPoint> points;  // of different sizes
};

// What a collective or a message takes between `ranks` that compute at the same time:
// alpha + bytes / rate. `bytes` are those that a rank sends.
struct LinkTimes {
  std::string stream;  // name of the stream in whose steps it was measured; empty: alone
  std::string kind;    // name of the launch: "all_reduce", "send"
  DType dtype = DType::f32;
  int64_t ranks = 2;
  double alpha_s = 0, bytes_per_s = 1;
  double spread = 0;  // the largest error of the fit, relative
  double seconds(double bytes) const { return alpha_s + bytes / bytes_per_s; }
};

// A measured time, for fit_link().
struct LinkSample {
  double bytes, seconds;
  double weight = 1;  // of its squared error
};
// Fits alpha >= 0 and the rate to the smallest relative errors (least squares). Needs two sizes.
LinkTimes fit_link(const std::string& kind, DType dtype, int64_t ranks,
                   const std::vector<LinkSample>& samples);

struct Calibration {
  std::string device;                // its kind, as a cluster file names it: "cpu", "h100"
  std::string machine, build, date;  // what was measured, by which program, when (UTC)
  int64_t threads = 1;               // of a rank that computes on a CPU
  int64_t ranks = 1;                 // that computed at the same time
  // Idle time of a stream between two launches, and of the host that enqueues one.
  double gap_s = 0, host_s = 0;
  // Idle time of a stream after a wait for communication, in seconds, by the parallelism of the
  // ranks as in `together`.
  std::map<std::string, double> wakes;
  // By how much computations slow down while a kind of stream communicates (0.1: by 10 %); by the
  // stream's name, such as dp_grad.
  std::map<std::string, double> slowdowns;
  // How many times longer the communication of such a stream takes in a step than alone, without
  // what it waits for other ranks.
  std::map<std::string, double> stretches;
  // How long a rank that waits for such a stream waits for later ranks, as a share of its
  // computing.
  std::map<std::string, double> idle_shares;
  // By how much longer such communication takes beside computations (1: twice as long).
  std::map<std::string, double> besides;
  // By how much longer computations take beside which nothing communicates, if ranks work together
  // by this parallelism ("tp", "cp", "ep", "pp" or "dp").
  std::map<std::string, double> together;
  std::vector<LaunchTimes> launches;
  std::vector<LinkTimes> links;

  const LaunchTimes* find(std::string_view name, DType dtype) const;  // null: not measured
  // Returns the times of the kind `between` the nearest number of ranks (by ratio), of this type if
  // there are any. Null: the kind was not measured.
  const LinkTimes* find_link(std::string_view kind, DType dtype, int64_t between) const {
    return find_link("", kind, dtype, between);
  }
  // The same for what was measured in the steps of such a stream.
  const LinkTimes* find_link(std::string_view stream, std::string_view kind, DType dtype,
                             int64_t between) const;
};

// Returns the text of a calibration file, which keeps six digits of each number.
std::string print_calibration(const Calibration& calibration);

// Reads a calibration file. Reports all mistakes with their lines; the calibration can be used only
// if there are none.
Calibration read_calibration(const std::string& path, Diagnostics& diagnostics);
Calibration read_calibration_text(const std::string& text, const std::string& source,
                                  Diagnostics& diagnostics);

}  // namespace mtrain::plan
