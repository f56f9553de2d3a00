#include "event_reporter.h"

#include <utility>

#include "apps/command_line.h"
#include "launch/agent.h"

namespace mtrain {

launch::JobEvent EventReporter::event(const char* name) const {
  launch::JobEvent e = job_;
  e.event = name;
  return e;
}

void EventReporter::begin(const std::string& job) {
  job_.job = job;
  command_.emplace(words_, [](const std::string& why) { print_warning("mtrain-launch", why); });
}

void EventReporter::started(int start, int ranks,
                            const std::vector<std::shared_ptr<const Pulse>>& /*pages*/) {
  job_.start = start, job_.ranks = ranks;
  command_->send(event("start"));
}

void EventReporter::spiked(int64_t step) {
  launch::JobEvent e = event("spike");
  e.step = step;
  command_->send(e);
}

void EventReporter::failed(const launch::JobFailure& failure) {
  launch::JobEvent e = event("failure");
  e.step = failure.step;
  e.culprit = failure.culprit;
  e.message = failure.message;
  e.exit_code = failure.exit_code;
  command_->send(e);
}

void EventReporter::restarting(int start, double delay_s) {
  launch::JobEvent e = event("restart");
  e.start = start;
  e.delay_s = delay_s;
  command_->send(e);
}

void EventReporter::ended(int exit_code) {
  launch::JobEvent e = event("end");
  e.exit_code = exit_code;
  command_->send(e);
}

}  // namespace mtrain
