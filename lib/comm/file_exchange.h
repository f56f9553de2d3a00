// Passes folders of files between processes of a job, apart from all communicators.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "comm/proven_socket.h"

namespace mtrain::comm {

// Names of folders and files have letters, digits, '-', '.' and '_', and do not begin with '.'.
bool is_exchanged_name(std::string_view name);

// The start of the name of a folder that is being received.
inline constexpr std::string_view kIncoming = ".in-";

// Serves the folders in `root`, and receives others into it. A received folder appears under its
// name when all of its files are complete.
class FileServer {
 public:
  static constexpr size_t kMostFiles = 64;        // in a folder
  static constexpr size_t kMostConnections = 64;  // others are closed at once

  struct Options {
    std::string address;  // numeric; the server listens only there
    ProvenSocket::Options socket;
    std::filesystem::path root;
    // Throws RunError if a folder of this many bytes is not accepted. Several threads may call it.
    std::function<void(int64_t bytes)> admit;
  };
  explicit FileServer(Options options);  // throws CommError
  ~FileServer();                         // closes every connection
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;
  uint16_t port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Keeps the mean rate of what is sent below a limit.
class RateLimit {
 public:
  explicit RateLimit(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}  // 0: no limit
  // Returns how long to wait before the next bytes, after `bytes` were sent at `now`.
  std::chrono::nanoseconds after(int64_t bytes, std::chrono::steady_clock::time_point now);

 private:
  const double bytes_per_s_;
  std::chrono::steady_clock::time_point next_{};
};

// A connection to a FileServer.
class FileClient {
 public:
  FileClient(const std::string& address, uint16_t port, const ProvenSocket::Options& options)
      : socket_(address, port, options) {}

  // Sends the files of `folder`, which the server stores under the folder's name. A folder of this
  // name that the server has stays as it is. Calls `meanwhile` from time to time. Throws CommError,
  // or RunError with the server's reason.
  void send_folder(const std::filesystem::path& folder, RateLimit& limit,
                   const std::function<void()>& meanwhile = {});
  // Copies a file of the server's folder to `to`. Throws CommError, or RunError.
  void fetch(const std::string& folder, const std::string& file, const std::filesystem::path& to);

 private:
  ProvenSocket socket_;
};

}  // namespace mtrain::comm
