#include "run/fault_injection.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "base/error.h"

namespace mtrain::run {

struct FaultInjection::Watch {
  std::string launch;
  std::set<std::string> seen;
};

FaultInjection::FaultInjection(const plan::FaultOptions& options, int rank, Device& device)
    : options_(options), rank_(rank), device_(device) {}

FaultInjection::~FaultInjection() {
  if (watch_) device_.set_launch_check({});
}

bool FaultInjection::is_due(int64_t step) const {
  return options_.moment != Moment::none && options_.rank == rank_ && options_.step == step;
}

void FaultInjection::before_step(int64_t step) {
  if (is_due(step) && options_.moment == Moment::launch) watch(options_.launch);
}

std::function<void(std::string_view)> FaultInjection::in_save(int64_t step) const {
  if (!is_due(step) || options_.moment != Moment::save) return {};
  // Without a moment: on rank 0 the data are written, but the commit is not done. On other ranks
  // they are not written.
  const std::string of_save = options_.of_save.empty()
                                  ? std::string(options_.rank == 0 ? "manifest" : "write")
                                  : options_.of_save;
  // "block 3" is the third moment of this name; other names have blanks, too.
  const size_t blank = of_save.rfind(' ');
  const int64_t number =
      blank == std::string::npos ? 0 : std::strtoll(of_save.c_str() + blank, nullptr, 10);
  const std::string name = number > 0 ? of_save.substr(0, blank) : of_save;
  return [this, name,
          left = std::make_shared<int64_t>(std::max<int64_t>(number, 1))](std::string_view moment) {
    if (moment == name && --*left == 0) fail();
  };
}

std::function<void()> FaultInjection::in_save_consolidated(int64_t step) const {
  if (!is_due(step) || options_.moment != Moment::save_consolidated) return {};
  return [this] { fail(); };
}

void FaultInjection::fail() const { std::raise(options_.kill ? SIGKILL : SIGSTOP); }

void FaultInjection::after_step(int64_t step) {
  if (!is_due(step)) return;
  std::string seen;
  if (watch_)
    for (const auto& name : watch_->seen) seen += (seen.empty() ? "" : ", ") + name;
  throw UserError(fmt::format("debug.fault.at={}: step {} has no such moment on rank {}",
                              options_.launch, step, rank_),
                  seen.empty() ? "a save comes with checkpoint.every_steps, and its Hugging Face "
                                 "form on rank 0 with checkpoint.save_consolidated: every"
                               : "its launches are " + seen + "; or use save");
}

void FaultInjection::watch(const std::string& launch) {
  watch_ = std::make_shared<Watch>(Watch{launch, {}});
  device_.set_launch_check([this, watch = watch_](Stream& stream, const device::LaunchInfo& info) {
    watch->seen.insert(info.name);
    if (watch->launch != info.name) return;
    // Waits until all work before the launch has run: the signal then arrives during the launch.
    while (stream.completed() + 1 < stream.enqueued()) std::this_thread::yield();
    fail();
  });
}

}  // namespace mtrain::run
