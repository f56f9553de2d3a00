// Tells the command of launch.on_event what the launcher sees of its job.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/event_command.h"
#include "launch/job_observer.h"

namespace mtrain {

class EventReporter : public launch::JobObserver {
 public:
  // `job` has the members that all events of the job share.
  EventReporter(std::vector<std::string> command, launch::JobEvent job)
      : words_(std::move(command)), job_(std::move(job)) {}

  void begin(const std::string& job) override;
  void started(int start, int ranks,
               const std::vector<std::shared_ptr<const Pulse>>& pages) override;
  void spiked(int64_t step) override;
  void failed(const launch::JobFailure& failure) override;
  void restarting(int start, double delay_s) override;
  void ended(int exit_code) override;

 private:
  launch::JobEvent event(const char* name) const;

  const std::vector<std::string> words_;
  launch::JobEvent job_;
  std::optional<launch::EventCommand> command_;
};

}  // namespace mtrain
