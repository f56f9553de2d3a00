// Passes folders of files between processes of a job, apart from all communicators.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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
// name when all of its files are complete. Connections that have not proved that they know the
// token take no place of a peer: a new one replaces the oldest one of them.
class FileServer {
 public:
  static constexpr size_t kMostFiles = 64;  // in a folder

  struct Options {
    std::string address;  // numeric; the server listens only there
    ProvenSocket::Options socket;
    std::filesystem::path root;
    // Throws RunError if a folder of this many bytes is not accepted. Several threads may call it.
    std::function<void(int64_t bytes)> admit = {};
    size_t most_peers = 128;     // at once; others are closed, and try again later
    size_t most_strangers = 64;  // connections at once that have proved nothing yet
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

// A connection to a FileServer. A server that has too many connections closes some, and a
// connection may be torn: each operation, and the first connection, is tried again with a growing
// pause until `retry` has passed since its first failure.
class FileClient {
 public:
  FileClient(std::string address, uint16_t port, const ProvenSocket::Options& options,
             std::chrono::milliseconds retry = {});

  // Sends the files of `folder`, which the server stores under the folder's name. A folder of this
  // name that the server has stays as it is. Calls `meanwhile` from time to time. Throws CommError,
  // or RunError with the server's reason.
  void send_folder(const std::filesystem::path& folder, RateLimit& limit,
                   const std::function<void()>& meanwhile = {});
  // Copies a file of the server's folder to `to`, which must not exist. Throws CommError, or
  // RunError; `to` then does not exist.
  void fetch(const std::string& folder, const std::string& file, const std::filesystem::path& to);

 private:
  using Work = std::function<void(ProvenSocket& socket)>;
  void persistently(const Work& work, const std::function<void()>& meanwhile);
  void pause(std::chrono::milliseconds time, const std::function<void()>& meanwhile) const;
  bool stopped() const { return options_.stop && *options_.stop; }

  const std::string address_;
  const uint16_t port_;
  const ProvenSocket::Options options_;
  const std::chrono::milliseconds retry_;
  std::optional<ProvenSocket> socket_;
};

}  // namespace mtrain::comm
