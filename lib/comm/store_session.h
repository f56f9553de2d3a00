// The store's side of the protocol, without sockets: what the store holds, and the dialogue with
// one client.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/store_protocol.h"

namespace mtrain::comm {

class StoreSession;

// Keys and values of a job. A value is kept once, however many clients are being sent it.
class StoreTable {
 public:
  static constexpr size_t kMaxKeys = size_t(1) << 20, kMaxBytes = size_t(256) << 20;

  explicit StoreTable(const Token& token) : token_(token) {}

  // Returns and clears the ids of the sessions for which another client's request has queued
  // output.
  std::vector<int> take_woken() { return std::exchange(woken_, {}); }

 private:
  friend class StoreSession;
  using Reply = std::shared_ptr<const std::string>;

  bool set(const std::string& key, std::string_view value);  // false: the store is full
  void remove(const std::string& key);
  void wake(const std::string& key);
  void end_waits(std::string_view reason);

  const Token token_;
  std::unordered_map<std::string, Reply> values_;  // each as the reply that answers get()
  size_t bytes_ = 0;                               // of keys and values
  std::unordered_map<std::string, std::vector<StoreSession*>> waiting_;  // by the key they wait for
  std::vector<int> woken_;
  std::string failure_;  // why the job has failed; "" while it lives
};

class StoreSession {
 public:
  // Bytes that may wait to be sent; above this, no request of the client is read.
  static constexpr size_t kMaxQueued = size_t(8) << 20;

  // `id` identifies the session within its table.
  StoreSession(StoreTable& table, int id, const Nonce& nonce)
      : table_(table), id_(id), nonce_(nonce) {}
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  // Takes bytes that have arrived. Returns false if the client breaks the protocol or does not know
  // the token: its connection must be closed.
  bool receive(std::string_view bytes);
  bool knows_token() const { return state_ == State::open; }
  bool has_greeted() const { return state_ != State::hello; }
  // Whether more bytes may be read from the client.
  bool reads() const { return queued_ < kMaxQueued; }

  std::string_view next_output() const;  // "": nothing to send
  // Records that `bytes` of next_output() have been sent, and serves requests that had to wait for
  // room. Returns false as receive() does.
  bool sent(size_t bytes);

 private:
  friend class StoreTable;
  enum class State { hello, proof, open };

  bool prove();
  bool serve();
  void serve_one(char operation, const std::string& key, std::string_view value);
  void get(const std::string& key);
  std::string add(const std::string& key, std::string_view value);
  void send(StoreTable::Reply reply);
  void answer(char kind, std::string_view text);

  StoreTable& table_;
  const int id_;
  const Nonce nonce_;
  Nonce client_nonce_{};
  State state_ = State::hello;
  std::string in_;
  std::deque<StoreTable::Reply> out_;
  size_t sent_ = 0;    // bytes of out_.front() that have been sent
  size_t queued_ = 0;  // bytes of out_
  bool waits_ = false;
  std::string waits_for_;  // key of an unanswered get
};

}  // namespace mtrain::comm
