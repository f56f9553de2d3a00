// An HTTP server for programs that watch a job, such as Prometheus. A stranger may connect to it:
// connections, bytes and seconds are bounded, and only GET is answered.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mtrain::launch {

class MetricsServer {
 public:
  // At most so many connections are open. A new one then closes the oldest that has had kMinTime.
  static constexpr int kMaxConnections = 8;
  static constexpr size_t kMaxHeadBytes = 4096;       // of a request, with all headers
  static constexpr std::chrono::seconds kMaxTime{2};  // from the connection to the last byte
  static constexpr std::chrono::milliseconds kMinTime{100};

  struct Health {
    bool well = true;
    std::string text;  // such as "ok"
  };
  struct Pages {
    std::function<std::string()> metrics;  // the text of /metrics
    std::function<Health()> health;        // of /healthz
  };

  // Listens at this address of the host; port 0: any free port. Threads of the server call the
  // pages. Throws UserError if it cannot listen.
  MetricsServer(const std::string& host, uint16_t port, Pages pages);
  ~MetricsServer();  // closes every connection
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  uint16_t port() const { return port_; }

 private:
  class Http;
  std::unique_ptr<Http> http_;
  uint16_t port_ = 0;
};

}  // namespace mtrain::launch
