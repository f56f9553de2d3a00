#include "train/fault.h"

#include <csignal>
#include <set>
#include <thread>

#include "base/error.h"

namespace mtrain {

struct Fault::Watch {
  std::string launch;
  std::set<std::string> seen;
};

Fault::Fault(const FaultConfig& config, int rank, Device& device)
    : config_(config), rank_(rank), device_(device) {}

Fault::~Fault() {
  if (watch_) device_.set_launch_check({});
}

bool Fault::is_due(int64_t step) const {
  return config_.at && config_.rank == rank_ && config_.step == step;
}

void Fault::before_step(int64_t step) {
  if (is_due(step) && *config_.at != "save") watch(*config_.at);
}

std::function<void(std::string_view)> Fault::in_save(int64_t step) const {
  if (!is_due(step) || *config_.at != "save") return {};
  return [this](std::string_view) { fail(); };  // data is written, but no checkpoint yet
}

void Fault::fail() const { std::raise(config_.kill ? SIGKILL : SIGSTOP); }

void Fault::after_step(int64_t step) {
  if (!is_due(step)) return;
  std::string seen;
  if (watch_)
    for (const auto& name : watch_->seen) seen += (seen.empty() ? "" : ", ") + name;
  throw UserError(fmt::format("debug.fault.at={}: step {} has no such moment on rank {}",
                              *config_.at, step, rank_),
                  seen.empty() ? "a save comes with checkpoint.every_steps"
                               : "its launches are " + seen + "; or use save");
}

void Fault::watch(const std::string& launch) {
  watch_ = std::make_shared<Watch>(Watch{launch, {}});
  device_.set_launch_check([this, watch = watch_](Stream& on, const LaunchInfo& info) {
    watch->seen.insert(info.name);
    if (watch->launch != info.name) return;
    // Once everything before it has run, so that the signal comes in its midst.
    while (on.completed() + 1 < on.enqueued()) std::this_thread::yield();
    fail();
  });
}

}  // namespace mtrain
