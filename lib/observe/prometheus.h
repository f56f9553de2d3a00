// A job in Prometheus's text format, version 0.0.4.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "observe/metrics_reader.h"

namespace mtrain::observe {

// The newest records of a file of metrics.
struct NewestRecords {
  std::optional<MetricsRecord> step, evaluation;
};
// Reads only the end of the file, however long it is. Has no records if the file cannot be read.
// Values that the newest step lacks, such as those of steps that are timed, are of the last step of
// the same start that has them.
NewestRecords newest_records(const std::filesystem::path& path);

// A job as its launcher sees it.
struct JobSample {
  bool running = true;            // false between a failure and the next start
  int64_t restarts = 0;           // of all ranks, by this launcher
  std::vector<PulseState> ranks;  // those of this host
  NewestRecords records;
  std::optional<double> checkpoint_age_s;  // since the newest checkpoint was complete
  std::optional<int64_t> checkpoint_step;
  std::optional<double> files_age_s;  // since records and checkpoints were read
};

// `now` is in seconds of the system's clock.
std::string prometheus_text(const JobSample& job, double now);

}  // namespace mtrain::observe
