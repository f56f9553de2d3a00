// What others may know about a job while the agent runs it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/pulse.h"

namespace mtrain::launch {

struct JobFailure;

// The agent's thread makes all calls. They must return at once: ranks are watched by this thread.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  // The first call, with the job's id. From here on the observer may have threads.
  virtual void begin(const std::string& /*job*/) {}
  // A start of all ranks, numbered from 0, with the number of ranks that the job has now. The pages
  // are those of the ranks of this host.
  virtual void started(int /*start*/, int /*ranks*/,
                       const std::vector<std::shared_ptr<const Pulse>>& /*pages*/) {}
  // A step was skipped, since its loss or gradient was not finite, or a spike.
  virtual void spiked(int64_t /*step*/) {}
  // A start has failed, or a signal has ended it.
  virtual void failed(const JobFailure& /*failure*/) {}
  // All ranks are started again after this time.
  virtual void restarting(int /*start*/, double /*delay_s*/) {}
  virtual void ended(int /*exit_code*/) {}
};

}  // namespace mtrain::launch
