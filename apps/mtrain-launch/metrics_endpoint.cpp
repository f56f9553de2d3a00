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

// How long a request waits for files. A connection has MetricsServer::kMaxTime.
constexpr std::chrono::milliseconds kForFiles{500};

void add_newest_checkpoint(const fs::path& folder, EndpointFiles& files) {
  const auto newest = storage::newest_sound(folder);
  if (!newest) return;
  files.checkpoint_step = newest->step;
  // The folder is renamed when it is complete, which keeps the time of its last file.
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(newest->path);
  files.checkpoint_age_s = std::max(0.0, std::chrono::duration<double>(age).count());
}

EndpointFiles read_files(const MetricsEndpoint::Options& o) {
  EndpointFiles files;
  try {
    if (!o.run_folder.empty())
      files.records = observe::newest_records(o.run_folder / "metrics.jsonl");
    if (!o.checkpoint_folder.empty()) add_newest_checkpoint(o.checkpoint_folder, files);
  } catch (const std::exception&) {  // a checkpoint may be removed meanwhile
  }
  return files;
}

}  // namespace

void MetricsEndpoint::begin(const std::string& /*job*/) {
  files_.emplace([options = options_] { return read_files(options); });
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
  if (auto files = files_->get(kForFiles)) {
    sample.records = std::move(files->value.records);
    sample.checkpoint_step = files->value.checkpoint_step;
    sample.files_age_s = files->age.count();
    if (const auto age = files->value.checkpoint_age_s)
      sample.checkpoint_age_s = *age + files->age.count();
  }
  keep_evaluation(sample.records);
  return observe::prometheus_text(sample, seconds_of_clock());
}

}  // namespace mtrain
