// Records the trace of a run. Every rank records its launches; at the end all are merged into one
// file.
#pragma once
#include <atomic>
#include <filesystem>
#include <string>

#include "base/step_range.h"
#include "observe/chrome_trace.h"
#include "train/trainer.h"

namespace mtrain::run {

class RunTrace : private device::TimingSink {
 public:
  // All ranks must call it, since it aligns their clocks with rank 0's. Throws UserError if the
  // file cannot be written. A trace of an earlier start stays until this one writes its own.
  RunTrace(train::Trainer& trainer, std::filesystem::path path, StepRange steps);
  ~RunTrace() override;  // ends the timing of launches

  device::TimingSink& sink() { return *this; }
  // What the trace has of a step: as seen by the host, on a separate track. Outside of its steps it
  // records nothing.
  void step_begins(int64_t step);
  void step_done(int64_t step);
  // Whether the trace is complete after this step, and not yet written.
  bool ends_after(int64_t step) const { return !finished_ && step == steps_.last; }
  // Adds what the host has done before the first step, unless the trace begins at a later one.
  void add_start(const char* name, const train::HostInterval& time);
  // Records what the host does besides steps, such as a save, while the object lives.
  class Span {
   public:
    Span(RunTrace* trace, const char* name);  // null: records nothing
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    RunTrace* trace_;
    const char* name_;
    int64_t began_ns_ = 0;
  };
  // Writes the trace, once. All ranks must call it; they return when it is written. Returns on rank
  // 0 a line for the log about the written file, or why nothing was written; returns an empty text
  // on the others.
  std::string finish(const observe::WroteTrace& wrote = {});

 private:
  std::string write_all(const observe::WroteTrace& wrote);
  std::filesystem::path part_of(int rank) const;
  std::filesystem::path own_path() const;
  void remove_empty() const;  // the file that the constructor has made, if nothing was written
  std::string merge(const observe::WroteTrace& wrote);
  void record(const device::Timing& timing) override;
  void waited(const device::Waiting& waiting) override { trace_.waited(waiting); }
  void record_memory(int64_t at_ns);

  train::Trainer& trainer_;
  const std::filesystem::path path_;
  const StepRange steps_;
  observe::ChromeTrace trace_;
  std::atomic<int64_t> memory_at_ns_ = 0;  // of the last value of the memory counter
  int64_t step_began_ns_ = 0;
  bool begun_ = false,
       finished_ = false;  // whether a step was recorded; whether finish() was called
};

}  // namespace mtrain::run
