#include "run/run_trace.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {
template <class Clock>
int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

int64_t ns_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

constexpr int64_t kBetweenMemory = 200'000;  // ns between two values of the counter, at least
}  // namespace

RunTrace::RunTrace(train::Trainer& trainer, fs::path path, StepRange steps)
    : trainer_(trainer), path_(std::move(path)), steps_(steps), trace_(trainer.world().rank()) {
  const fs::path own = own_path();
  // The file may have the trace of an earlier start, which finish() replaces or keeps.
  const int fd = ::open(own.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    throw UserError(
        fmt::format("debug.trace: {} cannot be written: {}", own.string(), std::strerror(errno)),
        "give a file in a folder that exists");
  ::close(fd);
  // Launches are timed by the steady clock of each host. Hosts share only the time of day; it is
  // used to convert the origin of rank 0.
  const int64_t day = now_ns<std::chrono::system_clock>(),
                steady = now_ns<std::chrono::steady_clock>();
  const int64_t origin = std::stoll(trainer_.control().texts(std::to_string(day))[0]);
  trace_.set_origin(steady - (day - origin));
  trace_.set_recording(steps_.contains(trainer_.steps_done() + 1));
}

void RunTrace::add_start(const char* name, const train::HostInterval& time) {
  trace_.record_step(name, ns_of(time.begin), ns_of(time.end));
}

void RunTrace::step_begins(int64_t step) {
  const bool traced = steps_.contains(step) && !finished_;
  trace_.set_recording(traced);
  begun_ = begun_ || traced;
  step_began_ns_ = now_ns<std::chrono::steady_clock>();
}

void RunTrace::step_done(int64_t step) {
  const int64_t now = now_ns<std::chrono::steady_clock>();
  for (const train::HostInterval& load : trainer_.data_loads())
    trace_.record_step("load data", ns_of(load.begin), ns_of(load.end));
  trace_.record_step(fmt::format("step {}", step), step_began_ns_, now);
  record_memory(now);
}

void RunTrace::record(const device::Timing& t) {
  trace_.record(t);
  const int64_t now = now_ns<std::chrono::steady_clock>(), before = memory_at_ns_;
  if (now - before >= kBetweenMemory) record_memory(now);
}

void RunTrace::record_memory(int64_t at_ns) {
  memory_at_ns_ = at_ns;
  trace_.record_bytes("memory", at_ns, trainer_.device().allocator().total().current);
}

RunTrace::Span::Span(RunTrace* trace, const char* name) : trace_(trace), name_(name) {
  if (trace_) began_ns_ = now_ns<std::chrono::steady_clock>();
}

RunTrace::Span::~Span() {
  if (trace_) trace_->trace_.record_step(name_, began_ns_, now_ns<std::chrono::steady_clock>());
}

RunTrace::~RunTrace() {
  trainer_.device().set_timing_sink(nullptr);
  remove_empty();  // the run failed before finish()
}

void RunTrace::remove_empty() const {
  std::error_code none;
  if (fs::is_empty(own_path(), none)) fs::remove(own_path(), none);
}

fs::path RunTrace::part_of(int rank) const {
  return path_.string() + fmt::format(".rank-{}", rank);
}

fs::path RunTrace::own_path() const {
  return trainer_.world().size() == 1 ? path_ : part_of(trainer_.world().rank());
}

std::string RunTrace::finish(const observe::WroteTrace& wrote) {
  if (std::exchange(finished_, true)) return "";
  std::string text = write_all(wrote);
  // Rank 0 merges for a while. In a step, ranks that wait for it would seem to hang.
  trainer_.control().texts("");
  return text;
}

std::string RunTrace::write_all(const observe::WroteTrace& wrote) {
  const int ranks = trainer_.world().size(), rank = trainer_.world().rank();
  if (!begun_ && steps_ != StepRange()) {
    remove_empty();
    return rank == 0 ? fmt::format(
                           "warning: no trace: this start has made no step of "
                           "debug.trace_steps, which begins at step {}",
                           steps_.first)
                     : "";
  }
  std::string problem;  // logged; does not end the run
  try {
    trace_.write(own_path(), wrote);
  } catch (const Error& e) {
    problem = e.message();
  }
  const auto problems = trainer_.control().texts(problem);  // also waits for all ranks' files
  if (rank != 0) return "";
  for (int r = 0; r < ranks; ++r)
    if (!problems[size_t(r)].empty())
      return fmt::format("warning: no trace: rank {}: {}", r, problems[size_t(r)]);
  if (ranks == 1) return fmt::format("trace written to {}", path_.string());
  try {
    return merge(wrote);
  } catch (const std::exception& e) {
    return fmt::format(
        "warning: each rank wrote its trace into the folder of {}, but they could not be merged: "
        "{}",
        path_.string(), e.what());
  }
}

std::string RunTrace::merge(const observe::WroteTrace& wrote) {
  const int ranks = trainer_.world().size();
  std::vector<fs::path> parts;
  for (int r = 0; r < ranks; ++r)
    if (fs::exists(part_of(r))) parts.push_back(part_of(r));
  observe::merge_traces(path_, parts, wrote);
  for (const fs::path& part : parts) fs::remove(part);
  const bool all = int(parts.size()) == ranks;
  return fmt::format("trace of {} rank{} written to {}{}", parts.size(),
                     parts.size() > 1 ? "s" : "", path_.string(),
                     all ? ""
                         : fmt::format("; those of other hosts are on these hosts, named like {}",
                                       part_of(ranks - 1).filename().string()));
}

}  // namespace mtrain::run
