#include "metrics_endpoint.h"

#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "apps/command_line.h"
#include "base/error.h"
#include "launch/agent.h"
#include "observe/prometheus.h"
#include "storage/checkpoint_dir.h"

namespace mtrain {

namespace fs = std::filesystem;

namespace {

double seconds_of_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void add_newest_checkpoint(const fs::path& folder, observe::JobSample& sample) {
  if (folder.empty()) return;
  try {
    const auto newest = storage::newest_sound(folder);
    if (!newest) return;
    sample.checkpoint_step = newest->step;
    // The folder is renamed when it is complete, which keeps the time of its last file.
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(newest->path);
    sample.checkpoint_age_s = std::max(0.0, std::chrono::duration<double>(age).count());
  } catch (const std::exception&) {
    return;  // it may be removed meanwhile
  }
}

}  // namespace

void MetricsEndpoint::begin(const std::string& /*job*/) {
  try {
    server_.emplace(options_.host, options_.port,
                    launch::MetricsServer::Pages{.metrics = [this] { return metrics(); },
                                                 .health = [this] { return health(); }});
  } catch (const UserError& e) {
    return print_warning("mtrain-launch",
                         fmt::format("--metrics_port: {}: no metrics are served", e.message()));
  }
  const bool ipv6 = options_.host.find(':') != std::string::npos;
  fmt::print(stderr, "mtrain-launch: metrics are at http://{}{}{}:{}/metrics\n", ipv6 ? "[" : "",
             options_.host, ipv6 ? "]" : "", server_->port());
}

void MetricsEndpoint::started(int /*start*/, int /*ranks*/,
                              const std::vector<std::shared_ptr<const Pulse>>& pages) {
  const std::lock_guard lock(mutex_);
  pages_ = pages;
  restarts_ += std::exchange(restarts_next_, false);
  running_ = true;
}

void MetricsEndpoint::failed(const launch::JobFailure& failure) {
  const std::lock_guard lock(mutex_);
  running_ = false;
  why_not_ = failure.message;
}

void MetricsEndpoint::restarting(int /*start*/, double /*delay_s*/) {
  const std::lock_guard lock(mutex_);
  restarts_next_ = true;
}

void MetricsEndpoint::ended(int exit_code) {
  const std::lock_guard lock(mutex_);
  running_ = false;
  if (exit_code == 0) why_not_ = "the job is done";
}

launch::MetricsServer::Health MetricsEndpoint::health() const {
  const std::lock_guard lock(mutex_);
  return {.well = running_, .text = running_ ? "ok" : why_not_};
}

// The last evaluation may be further from the end of the file than newest_records() reads. It
// counts until the ranks begin again before it.
void MetricsEndpoint::keep_evaluation(observe::NewestRecords& records) {
  const std::lock_guard lock(mutex_);
  if (records.evaluation)
    evaluation_ = records.evaluation;
  else if (evaluation_ && records.step && evaluation_->step <= records.step->step)
    records.evaluation = evaluation_;
}

std::string MetricsEndpoint::metrics() {
  observe::JobSample sample;
  {
    const std::lock_guard lock(mutex_);
    sample.running = running_;
    sample.restarts = restarts_;
    for (const auto& page : pages_) sample.ranks.push_back(page->state());
  }
  if (!options_.run_folder.empty())
    sample.records = observe::newest_records(options_.run_folder / "metrics.jsonl");
  keep_evaluation(sample.records);
  add_newest_checkpoint(options_.checkpoint_folder, sample);
  return observe::prometheus_text(sample, seconds_of_clock());
}

}  // namespace mtrain
