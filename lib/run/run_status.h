// Keeps run.json (storage/run_record.h) of a run up to date. Only rank 0 has one.
#pragma once
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>

#include "base/pulse.h"
#include "launch/job.h"
#include "storage/run_record.h"

namespace mtrain::run {

// A file that cannot be written is one warning: training continues. Before the first at() nothing
// is written: a start that is refused, or does nothing, changes nothing.
class RunStatus {
 public:
  // The run has the lock of the folder. `continues`: it is another attempt of the run in it.
  RunStatus(std::filesystem::path run_folder, const launch::Job& job, const Pulse& pulse,
            bool continues);

  // A step is saved, or the run begins after it.
  void at(int64_t step, int64_t last_step);
  // The run ends early if `why` is not empty.
  void ended(int64_t step, const std::string& why);
  void failed(const std::exception& error);

 private:
  void write();

  const std::filesystem::path folder_;
  storage::RunRecord record_;
  bool begun_ = false, warned_ = false;
  bool restarts_ = false, first_start_ = true;
};

}  // namespace mtrain::run
