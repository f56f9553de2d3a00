// A small key-value store over TCP, through which the processes of a job find each other. The
// launcher of host 0 serves it, or else rank 0; all ranks are its clients. Each end proves to the
// other that it knows the job's token before it sends anything else (store_protocol.h).
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/token.h"
#include "store/store_protocol.h"

namespace mtrain::store {

// The address at which a job's ranks meet.
struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  Token token{};
  int64_t round = 0;  // number of the start of all ranks; for a server, the one that is current
  std::string job{};  // name of the job; "": it has none
};

// Allows this process as many connections as the system's limit of open files allows, at most
// `connections` beside those that it has. Returns how many it allows now.
int64_t allow_connections(int64_t connections);

class StoreServer {
 public:
  // The largest number of connections that have not proved that they know the token. The server
  // closes one of them before it accepts another connection.
  static constexpr size_t kMaxStrangers = 64;
  // File descriptors that such connections must leave for the rest of the process.
  static constexpr int kReservedDescriptors = 64;

  // Listens only at `at.host`, a name or an address of this host; "" means all addresses, and port
  // 0 any free port. Throws UserError if the port is taken.
  explicit StoreServer(const StoreAddress& at);
  ~StoreServer();  // closes every connection
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  uint16_t port() const { return address_.port; }
  const StoreAddress& address() const { return address_; }  // for the clients on this host

  // Begins a later round. Ranks of earlier rounds that ask or connect get a reason to end.
  void begin_round(int64_t round);
  // Makes all waits of the round's ranks throw with this reason; the first reason is kept.
  void fail_round(const std::string& reason);

  // The keys of the launchers (kLaunchers), for the launcher that leads the others. Waits at most
  // `most` until one of them has set a key, or has left, since the last call.
  void await_launchers(std::chrono::milliseconds most);
  std::map<std::string, LauncherValue> launcher_values();
  void set_launcher_value(const std::string& key, const std::string& value);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  StoreAddress address_;
};

// The server at the address does not know this job's token, or serves another job.
class OtherJobError : public UserError {
  using UserError::UserError;
};

// The client's round has ended: all ranks have been restarted.
class OldRoundError : public CommError {
  using CommError::CommError;
};

// Nobody listens at the address, as the system of a host that is alive has answered every time. A
// server whose process is stopped listens on.
class NobodyListensError : public CommError {
  using CommError::CommError;
};

// A client of the store. Any thread may call it; calls take turns.
class Store {
 public:
  // Tries until a server of this job answers that has reached the round of `at`. Throws CommError
  // (or NobodyListensError) when the timeout has passed, OldRoundError at once if the server's
  // round is a later one, and OtherJobError at once if the server is of another job. Calls have the
  // same timeout unless `timeout` is given apart from `to_connect`.
  Store(const StoreAddress& at, std::chrono::milliseconds timeout) : Store(at, timeout, timeout) {}
  Store(const StoreAddress& at, std::chrono::milliseconds to_connect,
        std::chrono::milliseconds timeout);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until a rank has set the key. Throws CommError when the timeout has passed, when the
  // server is gone, or when the job has failed; the error then has the reason that was given to
  // fail().
  std::string get(const std::string& key);
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  // Return the numeric addresses of the connection's two ends. This host and the server's host
  // reach each other by them.
  std::string local_address() const;
  std::string server_address() const;
  // Adds `delta` to a number that begins at 0, and returns the sum.
  int64_t add(const std::string& key, int64_t delta);
  // Forgets the key, if there is one.
  void remove(const std::string& key);

  // A collection has a text of each member from 0 to `size` - 1. put() returns false if the member
  // has one already. all() waits for all texts, as get() does. missing() returns the members
  // without a text.
  bool put(const std::string& collection, int64_t member, int64_t size, const std::string& text);
  std::vector<std::string> all(const std::string& collection, int64_t size);
  std::vector<int64_t> missing(const std::string& collection, int64_t size);

  // Makes all waits for keys, of all ranks, throw with this reason; the first reason is kept.
  void fail(const std::string& reason);
  std::string failure();  // the reason, or "" while the job lives

  // Makes the calls of other threads throw CommError, now and later.
  void disconnect();

 private:
  std::string call(char operation, const std::string& key, const std::string& value,
                   std::chrono::milliseconds timeout);
  void prove_each_other(const Token& token, std::chrono::steady_clock::time_point deadline);
  void enter(const StoreAddress& at, std::chrono::steady_clock::time_point deadline);
  std::string exchange(char operation, const std::string& key, const std::string& value,
                       std::chrono::steady_clock::time_point deadline);
  void close_socket();
  std::mutex mutex_;
  std::mutex socket_mutex_;  // its owner may use or close a socket that another thread reads
  std::string where_;
  std::chrono::milliseconds timeout_;
  int fd_ = -1;
};

}  // namespace mtrain::store
