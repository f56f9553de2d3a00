// A small key-value store over TCP, through which the processes of a job find each other. One rank
// serves it; all ranks, this one included, are its clients.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace mtrain::comm {

class StoreServer {
 public:
  // Port 0 stands for any free port. Throws UserError when the port is taken.
  explicit StoreServer(uint16_t port);
  ~StoreServer();  // closes every connection
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  uint16_t port() const { return port_; }

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  uint16_t port_ = 0;
};

// A client of the store. Any thread may call it; calls take turns.
class Store {
 public:
  // Tries until a server answers at this address. Throws CommError when the timeout has passed.
  Store(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until a rank has set the key. Throws CommError when the timeout has passed, when the
  // server is gone, or when the job has failed; the error then has the reason that was given to
  // fail().
  std::string get(const std::string& key);
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  // Return the numeric addresses of the two ends of the connection, by which this host and the
  // server's reach each other.
  std::string local_address() const;
  std::string server_address() const;
  // Adds `delta` to a number that begins at 0, and returns the sum.
  int64_t add(const std::string& key, int64_t delta);
  // Makes all waits for keys, of all ranks, throw with this reason; the first reason stays.
  void fail(const std::string& reason);
  std::string failure();  // the reason, or "" while the job lives

 private:
  std::string call(char operation, const std::string& key, const std::string& value,
                   std::chrono::milliseconds timeout);
  std::mutex mutex_;
  std::string where_;
  std::chrono::milliseconds timeout_;
  int fd_ = -1;
};

}  // namespace mtrain::comm
