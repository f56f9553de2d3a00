// A page of shared memory in which a rank shows what it does: its phase, its step, and its last
// launches. The launcher makes it before the rank starts, and reads it also while the rank is
// stopped, and after its death.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain {

// What a rank does. `none`: its program has not begun to train, or does not train.
enum class PulsePhase : uint32_t { none, start, step, evaluation, save, end };

// A copy of a page.
struct PulseState {
  struct Stream {
    std::string name;
    uint64_t enqueued = 0, done = 0;  // items
    bool communicates = false;
  };
  struct Launch {
    uint64_t number = 0;  // its place within its stream, from 1
    int stream = 0;       // an index into `streams`
    std::string name;
    bool done = false;
  };
  int rank = 0;
  int64_t pid = 0;
  PulsePhase phase = PulsePhase::none;
  int64_t step = 0, last_step = 0;  // `step`: the current one, or the last one that was done
  double began = 0;                 // when the phase began, in seconds of the system's clock
  double limit_s = 0;  // how long the rank may be without progress in this phase; 0: without limit
  uint64_t progress = 0;                 // changes with each activity that begins
  uint64_t launches = 0;                 // enqueued so far, on all streams
  int64_t updates = 0;                   // steps that this process has made
  int64_t done_step = 0;                 // the last step that is done, as far as it is known
  double step_s = 0, median_step_s = 0;  // of the last steps; 0: unknown
  int64_t memory = 0, memory_peak = 0;   // bytes of the device
  int64_t spike_step = 0;                // the last step that was skipped as a spike; 0: none
  double exposed_s = -1;                 // exposed communication of a step; -1: unknown
  std::vector<Stream> streams;
  std::vector<Launch> last;  // the last launches, oldest first

  // The oldest launch that is not done, or else the last one; null if there is none.
  const Launch* current() const;
  const Stream& stream_of(const Launch& launch) const { return streams[size_t(launch.stream)]; }
};

// What a watcher reads often.
struct PulseGlance {
  PulsePhase phase = PulsePhase::none;
  int64_t step = 0, done_step = 0;
  int64_t spike_step = 0;  // as above
  // The rank that was named last as too slow, and when; -1: none. Rank 0 knows it.
  int straggler = -1;
  int64_t straggler_step = 0;
  double limit_s = 0;
  uint64_t progress = 0;  // changes with each activity that begins
  // Changes with what is launched, what is done, and what is written. Launches of the stream
  // `control` do not count: ranks that wait for one another make them.
  uint64_t work = 0;
  bool in_slow_step = false;  // one of the first steps, in which work counts as progress
};

std::string_view phase_name(PulsePhase phase);  // "step"
// Returns "step 12 of 100", "start", "evaluation after step 12", ...
std::string phase_text(const PulseState& state);
// Returns one line for each of the last `most` launches, the oldest first: its stream, its number,
// its name, and whether it has finished.
std::vector<std::string> launch_lines(const PulseState& state, int most);
// Returns "all_reduce (item 12 of stream dp_grad, pending)" for PulseState::current().
std::string current_text(const PulseState& state);

// How long a rank may be without progress, in seconds; 0: without limit.
struct PulseLimits {
  double start_s = 0, save_s = 0;
  // Of a step; absent: kSteps times the median of the last steps, and at least kLeast.
  std::optional<double> step_s = 0;
  static constexpr double kSteps = 10, kLeast = 30;
};

// Writes a page. One thread writes, except for wrote() and set_done(), which any thread may call.
// No function that writes waits, allocates, or calls the system.
class Pulse {
 public:
  // The variable that has the number of an inherited descriptor.
  static constexpr const char* kVariable = "MTRAIN_PULSE_FD";
  static constexpr int kLaunches = 256;  // how many launches a page has
  static constexpr int kStreams = 32;    // launches on further streams have no name of a stream

  // Makes a page that is private to this process.
  Pulse() : Pulse(-1, new_page(-1, 0)) {}
  // Makes a page that other processes of this user can read, through this process's descriptor. It
  // is private if the system has no such memory.
  static std::shared_ptr<Pulse> make(int rank);
  // Returns the page that this process has inherited, cleared of what an earlier process wrote, or
  // a new one: without a launcher, or if the descriptor is not a page of this rank.
  static std::shared_ptr<Pulse> of_process(int rank);
  // Reads a page through a path such as /proc/<pid>/fd/<descriptor>. Returns nothing if it is not a
  // page, or not of this version.
  static std::optional<PulseState> read(const std::filesystem::path& path);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  int descriptor() const { return fd_; }  // closed at exec; -1: the page is private
  int error() const { return error_; }    // why make() has made a private page (errno), or 0
  PulseState state() const;
  PulseGlance glance() const;

  void set_limits(const PulseLimits& limits) { limits_ = limits; }
  void set_last_step(int64_t step);
  void at(PulsePhase phase, int64_t step);  // begins a phase
  void step_done(double seconds);           // the time of a step that has just ended
  void wrote();  // a part of a file has been written, or sent: progress, but not of a step
  void set_memory(int64_t bytes, int64_t peak);
  void set_exposed(double seconds);
  void set_spike(int64_t step);
  void set_straggler(int rank, int64_t step);

  void name_stream(int index, std::string_view name, bool communicates);
  // Adds a launch to the page: item `number` of a stream.
  void launch(int stream, uint64_t number, const char* name);
  void set_done(int stream, uint64_t items);

 private:
  struct Page;
  Pulse(int fd, Page* page);
  static std::shared_ptr<Pulse> inherited(int rank);
  static Page* new_page(int fd, int rank);
  static PulseState copy(const Page& page);
  double limit(PulsePhase phase) const;

  int fd_ = -1, error_ = 0;
  Page* page_ = nullptr;
  PulseLimits limits_;
  std::vector<double> times_;  // of the last steps
  size_t next_time_ = 0;
  double median_ = 0;
};

}  // namespace mtrain
