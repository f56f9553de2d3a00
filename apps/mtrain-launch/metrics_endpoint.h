// Serves a job's state to Prometheus (--metrics_port).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/background_reader.h"
#include "launch/job_observer.h"
#include "launch/metrics_server.h"
#include "observe/prometheus.h"

namespace mtrain {

// What the endpoint knows from files.
struct EndpointFiles {
  observe::NewestRecords records;
  std::optional<double> checkpoint_age_s;  // when it was read
  std::optional<int64_t> checkpoint_step;
};

class MetricsEndpoint : public launch::JobObserver {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 0;  // 0: any free one
    // The folders of a training; empty for a job of another program.
    std::filesystem::path run_folder = {}, checkpoint_folder = {};
  };
  explicit MetricsEndpoint(Options options) : options_(std::move(options)) {}

  // Prints a warning if the port cannot be used. The job runs all the same.
  void begin(const std::string& job) override;
  void started(int start, int ranks,
               const std::vector<std::shared_ptr<const Pulse>>& pages) override;
  void failed(const launch::JobFailure& failure) override;
  void restarting(int start, double delay_s) override;
  void ended(int exit_code) override;

 private:
  std::string metrics();
  void keep_evaluation(observe::NewestRecords& records);
  launch::MetricsServer::Health health() const;

  const Options options_;
  mutable std::mutex mutex_;  // guards what the server's threads read
  std::vector<std::shared_ptr<const Pulse>> pages_;
  int restarts_ = 0;
  bool running_ = false, restarts_next_ = false;      // whether the next start is a restart
  std::optional<observe::MetricsRecord> evaluation_;  // the last one that was read
  std::string why_not_ = "the ranks have not been started";
  // Ranks and /healthz are served, and the launcher ends, though a file system stalls.
  std::optional<BackgroundReader<EndpointFiles>> files_;
  std::optional<launch::MetricsServer> server_;  // the last member: it calls the others
};

}  // namespace mtrain
