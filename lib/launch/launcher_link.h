// A launcher's connection to the launcher that leads the job, through the job's store.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "launch/launcher_notes.h"
#include "store/store.h"

namespace mtrain::launch {

// Keeps this launcher's note in the store up to date, and takes the news of the leader. Two threads
// do this; all functions may be called by any thread.
class LauncherLink {
 public:
  static constexpr std::chrono::seconds kBeat{2};
  // After this time, in which nothing was answered, the leader is gone. It begins with the first
  // attempt that fails: at once if nobody listens, 5 s later if the leader is stopped.
  static constexpr std::chrono::seconds kLeaderLease{10};
  // The leader's process has ended if its host refuses connections for this long, where there was
  // one. A leader that is stopped refuses none.
  static constexpr std::chrono::seconds kRefused{1};

  struct Options {
    store::StoreAddress at;  // its token is that of find_token()
    std::function<std::optional<Token>()> find_token;
    bool token_may_change = false;         // find_token() may still return that of an earlier job
    std::chrono::milliseconds to_connect;  // how long to wait for the leader
    LauncherNote note;                     // the first one
  };

  explicit LauncherLink(Options options);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  int fd() const { return event_; }  // readable if there may be news, or the leader is gone
  void clear_event();
  // Returns the oldest news that has not been dropped; nothing if there is none.
  std::optional<LauncherNews> news();
  void drop_news();  // the oldest
  // Changes the note. It is sent at once.
  void change(const std::function<void(LauncherNote&)>& change);
  const std::string& id() const { return id_; }
  bool has_connected();
  // Returns why the leader cannot be reached; "" while it can, or may still. Throws what has
  // refused this launcher.
  std::string lost();
  bool is_leader_dead();  // its process has ended; it is lost, too

 private:
  void write_notes();
  void read_news();
  std::shared_ptr<store::Store> connect(std::shared_ptr<store::Store>& to);
  void notify() const;
  bool pause(std::chrono::milliseconds time);  // false: the link ends

  const Options o_;
  const std::string id_;
  const int event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  LauncherNote note_;
  bool dirty_ = true, ends_ = false, connected_ = false, dead_ = false;
  std::deque<LauncherNews> news_;
  std::string lost_;
  std::exception_ptr error_;
  std::shared_ptr<store::Store> notes_store_, news_store_;
  std::thread writer_, reader_;  // the last members: they use the others
};

}  // namespace mtrain::launch
