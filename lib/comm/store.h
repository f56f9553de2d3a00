// A small key-value store over TCP, where the processes of a job find each other. One rank serves
// it, and all ranks, that one too, are its clients.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace mtrain::comm {

class StoreServer {
 public:
  // Port 0 takes a free one. Throws UserError when the port is taken.
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

// Any thread may call it; calls take turns.
class Store {
 public:
  // Tries until a server answers there or the timeout has passed (CommError).
  Store(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until somebody has set the key; CommError when the timeout passes, the server is gone, or
  // the job has failed, whose reason it then tells.
  std::string get(const std::string& key);
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  // The numeric addresses of both ends of the connection: how this host and the server's reach each
  // other.
  std::string local_address() const;
  std::string server_address() const;
  // Adds to a number that begins at 0, and returns the sum.
  int64_t add(const std::string& key, int64_t delta);
  // Ends the waits of all ranks for keys that will not come any more; the first reason stays.
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
