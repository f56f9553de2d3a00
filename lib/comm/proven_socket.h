// A TCP connection between two processes of a job. It begins with the mutual proof of the store
// (store_protocol.h), under a greeting of its own.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/token.h"

namespace mtrain::comm {

// Nobody listens at an address: another attempt would fail as well.
class ConnectionRefused : public CommError {
 public:
  using CommError::CommError;
};

// One thread uses it at a time. Every function throws CommError if the peer is gone, or is silent
// for `patience`.
class ProvenSocket {
 public:
  struct Options {
    Token token;
    std::chrono::milliseconds patience = std::chrono::seconds(20);
    std::chrono::milliseconds proof = std::chrono::seconds(5);  // for the full proof
    const std::atomic<bool>* stop = nullptr;  // waits end with CommError once it is true
  };
  // Connects to a numeric address. Throws CommError unless the server knows the token, and
  // ConnectionRefused if there is no server.
  ProvenSocket(const std::string& address, uint16_t port, const Options& options);
  // Takes the descriptor of an accepted connection. Throws CommError unless the client knows the
  // token; it has then got nothing but a greeting.
  ProvenSocket(int fd, const Options& options);
  ~ProvenSocket();
  ProvenSocket(const ProvenSocket&) = delete;
  ProvenSocket& operator=(const ProvenSocket&) = delete;

  void send(const void* data, size_t bytes);
  void receive(void* data, size_t bytes);
  void send_number(int64_t value);
  int64_t receive_number();
  void send_text(std::string_view text);
  std::string receive_text(size_t most);  // throws CommError if the text is longer
  void send_letter(char letter) { send(&letter, 1); }
  char receive_letter();

 private:
  using Clock = std::chrono::steady_clock;
  void prove_as_client(const Token& token);
  void prove_as_server(const Token& token);
  void wait(short events);

  int fd_;
  const std::chrono::milliseconds patience_;
  const std::atomic<bool>* const stop_;
  // The end of the proof. Until it has passed, each wait ends there at the latest.
  Clock::time_point deadline_;
  bool proven_ = false;
};

// Returns a socket that listens at a numeric address of this host, and its port. Throws CommError.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};
Listener listen_at(const std::string& address);

}  // namespace mtrain::comm
