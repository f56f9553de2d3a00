// Records the trace of a run. Every rank records its launches; at the end all are merged into one
// file.
#pragma once
#include <filesystem>
#include <string>

#include "observe/chrome_trace.h"
#include "train/trainer.h"

namespace mtrain::run {

class RunTrace {
 public:
  // All ranks must call it, since it aligns their clocks with rank 0's. Throws UserError if the
  // file cannot be written.
  RunTrace(train::Trainer& trainer, std::filesystem::path path);
  ~RunTrace();  // ends the timing of launches

  device::TimingSink& sink() { return trace_; }
  // These record a step as seen by the host, on a separate track.
  void step_begins();
  void step_done(int64_t step);
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
  // Writes the trace. All ranks must call it. Returns on rank 0 a line for the log about the
  // written file, or why nothing was written; returns an empty text on the others.
  std::string finish();

 private:
  std::filesystem::path part_of(int rank) const;
  std::filesystem::path own_path() const;
  std::string merge();

  train::Trainer& trainer_;
  const std::filesystem::path path_;
  observe::ChromeTrace trace_;
  int64_t step_began_ns_ = 0;
};

}  // namespace mtrain::run
