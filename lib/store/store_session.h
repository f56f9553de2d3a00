// The store's side of the protocol, without sockets: what the store holds, and the dialogue with
// one client.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/store_protocol.h"

namespace mtrain::store {

class StoreSession;

// Keys and values of a job. A value is kept once, however many clients are being sent it.
class StoreTable {
 public:
  static constexpr size_t kMaxKeys = size_t(1) << 20, kMaxBytes = size_t(256) << 20;
  // Notes of launchers leave room for the news. The newest ones of those that have left are kept.
  static constexpr size_t kMaxNotesBytes = kMaxBytes / 2, kMaxLeftNotes = 1024;

  explicit StoreTable(const Token& token, std::string job = "", int64_t round = 0)
      : token_(token), job_(std::move(job)), round_(round) {}

  // Forgets all keys of the round and begins a later one. Clients of earlier rounds get a reason to
  // end, now and whenever they ask.
  void begin_round(int64_t round);
  // Ends all waits of the round, with this reason. The round's first reason is kept.
  void fail_round(std::string_view reason);

  // The keys of the launchers, for the process that serves the store. Only it sets kNews.
  std::map<std::string, LauncherValue> launcher_values() const;
  void set_launcher_value(const std::string& key, std::string_view value);
  // Returns whether launchers have set a key, or left, since the last call.
  bool take_launcher_change() { return std::exchange(launchers_changed_, false); }

  // Returns and clears the ids of the sessions for which another client's request has queued
  // output.
  std::vector<int> take_woken() { return std::exchange(woken_, {}); }

 private:
  friend class StoreSession;
  using Reply = std::shared_ptr<const std::string>;
  using Sessions = std::vector<StoreSession*>;

  // Texts of members; once all are present, the reply that has all of them.
  struct Collection {
    std::vector<std::unique_ptr<std::string>> texts;  // null: missing
    int64_t present = 0, size = 0;
    size_t bytes = 0;  // of the texts and their places
    Reply all;
  };
  // The keys of a round, or of the launchers.
  struct Space {
    std::unordered_map<std::string, Reply> values;  // each as the reply that answers get()
    std::unordered_map<std::string, Collection> collections;
    size_t bytes = 0;                                   // of keys, values and collections
    std::unordered_map<std::string, Sessions> waiting;  // by operation and key
    std::string failure;  // why the round has failed; "" while it lives
  };

  bool set(Space& space, const std::string& key, std::string_view value);  // false: it is full
  void remove(Space& space, const std::string& key);
  // Returns why the session may not set its note so; "" if it has done so.
  std::string set_note(StoreSession& session, const std::string& key, std::string_view value);
  void leave(const StoreSession& session);  // its note stays
  void forget_oldest_note();
  void forget_note(const std::string& key);
  // Returns the answer to kPut, or the reason of a refusal.
  std::pair<char, std::string> put(Space& space, const std::string& key, std::string_view value);
  static bool has_room(const Space& space, size_t bytes);
  void wake(Space& space, const std::string& waited, const Reply& reply);
  void end_waits(Space& space, char kind, std::string_view reason);
  Space& space_of(int64_t round) { return round == kLaunchers ? launchers_ : ranks_; }
  std::string outdated(int64_t round) const;

  const Token token_;
  const std::string job_;
  int64_t round_;
  Space ranks_, launchers_;  // the keys of the current round, and those that outlive rounds
  std::vector<std::pair<int64_t, StoreSession*>> early_;  // clients of later rounds
  // The session that has set a key of the launchers last, as long as it is connected.
  std::unordered_map<std::string, const StoreSession*> setters_;
  std::deque<std::string> left_;  // the keys of the other notes, the oldest first
  size_t notes_bytes_ = 0;        // of all notes and their keys
  bool launchers_changed_ = false;
  std::vector<int> woken_;
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
  enum class Wait { none, key, round };

  bool prove();
  bool serve();
  void serve_one(char operation, const std::string& key, std::string_view value);
  void serve_keys(StoreTable::Space& space, char operation, const std::string& key,
                  std::string_view value);
  void enter(const std::string& job, std::string_view round);
  void wait_for(StoreTable::Space& space, const std::string& waited);
  void serve_launcher(char operation, const std::string& key, std::string_view value);
  void missing(const StoreTable::Space& space, const std::string& key, std::string_view size);
  static std::string add(const StoreTable::Space& space, const std::string& key,
                         std::string_view value);
  void send(StoreTable::Reply reply);
  void answer(char kind, std::string_view text);

  StoreTable& table_;
  const int id_;
  const Nonce nonce_;
  Nonce client_nonce_{};
  State state_ = State::hello;
  bool entered_ = false;
  int64_t round_ = 0;
  std::string in_;
  std::deque<StoreTable::Reply> out_;
  size_t sent_ = 0;    // bytes of out_.front() that have been sent
  size_t queued_ = 0;  // bytes of out_
  Wait waits_ = Wait::none;
  std::string waits_for_;  // operation and key of an unanswered request
  std::string note_;       // the key that this launcher sets; "": none yet
};

}  // namespace mtrain::store
