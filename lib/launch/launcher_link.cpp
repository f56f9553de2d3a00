#include "launch/launcher_link.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "base/error.h"

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kCallTime = 5s;                         // for an answer of the store
constexpr auto kConnectTime = LauncherLink::kRefused;  // the destructor may have to wait for it
constexpr auto kNewsTime = 60s;                        // then the reader connects again
constexpr auto kRetryTime = 100ms;

}  // namespace

LauncherLink::LauncherLink(Options options)
    : o_(std::move(options)),
      id_(o_.note.id),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      note_(o_.note) {
  if (event_ < 0) throw RunError("no descriptor is left for the launcher's news");
  writer_ = std::thread([this] { write_notes(); });
  reader_ = std::thread([this] { read_news(); });
}

LauncherLink::~LauncherLink() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const auto& store : {notes_store_, news_store_})
      if (store) store->disconnect();
  }
  changed_.notify_all();
  writer_.join();
  reader_.join();
  close(event_);
}

void LauncherLink::notify() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event_, &one, sizeof one);
}

void LauncherLink::clear_event() {
  uint64_t count = 0;
  [[maybe_unused]] const auto n = read(event_, &count, sizeof count);
}

std::optional<LauncherNews> LauncherLink::news() {
  const std::lock_guard lock(mutex_);
  return news_.empty() ? std::nullopt : std::optional(news_.front());
}

void LauncherLink::drop_news() {
  const std::lock_guard lock(mutex_);
  if (!news_.empty()) news_.pop_front();
}

void LauncherLink::change(const std::function<void(LauncherNote&)>& change) {
  {
    const std::lock_guard lock(mutex_);
    change(note_);
    dirty_ = true;
  }
  changed_.notify_all();
}

bool LauncherLink::has_connected() {
  const std::lock_guard lock(mutex_);
  return connected_;
}

std::string LauncherLink::lost() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  // A leader that has announced the end of the job may be gone.
  const bool is_over = !news_.empty() && news_.back().kind == LauncherNews::Kind::over;
  return is_over ? "" : lost_;
}

bool LauncherLink::is_leader_dead() {
  const std::lock_guard lock(mutex_);
  return dead_;
}

bool LauncherLink::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [&] { return ends_; });
}

// Throws CommError if the leader does not answer now.
std::shared_ptr<store::Store> LauncherLink::connect(std::shared_ptr<store::Store>& to) {
  store::StoreAddress at = o_.at;
  const auto token = o_.find_token();
  if (!token) throw CommError("host 0 has not made the job's token yet");
  at.token = *token;
  try {
    auto store = std::make_shared<store::Store>(at, kConnectTime, kCallTime);
    const std::lock_guard lock(mutex_);
    if (ends_) throw CommError("this launcher ends");
    to = store;
    return store;
  } catch (const store::OtherJobError& e) {
    if (!o_.token_may_change) throw;
    throw CommError(e.message(), e.hint());
  }
}

void LauncherLink::write_notes() {
  std::shared_ptr<store::Store> store;
  std::optional<Clock::time_point> failing_since;
  for (int64_t beat = 1;; ++beat) {
    LauncherNote note;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, beat == 1 ? 0s : kBeat, [&] { return dirty_ || ends_; });
      if (ends_) return;
      dirty_ = false;
      note_.beat = beat;
      note = note_;
    }
    std::string why;
    bool is_dead = false;
    try {
      if (!store) store = connect(notes_store_);
      store->set(note_key(note), text_of(note));
      failing_since.reset();
      const std::lock_guard lock(mutex_);
      connected_ = true;
      continue;
    } catch (const store::NobodyListensError& e) {
      why = e.message();
      is_dead = has_connected();
    } catch (const CommError& e) {
      store.reset();
      why = e.message();
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    const std::chrono::milliseconds patience = has_connected() ? kLeaderLease : o_.to_connect;
    {
      const std::lock_guard lock(mutex_);
      dirty_ = true;
      // Not since the last answer: this process may have been stopped.
      if (!failing_since) failing_since = Clock::now();
      if (is_dead || Clock::now() - *failing_since > patience) lost_ = why;
      dead_ = is_dead;
      if (error_ || !lost_.empty()) break;
    }
    if (!pause(kRetryTime)) return;
  }
  notify();
}

void LauncherLink::read_news() {
  std::shared_ptr<store::Store> store;
  int64_t number = 0;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (ends_ || error_ || !lost_.empty()) return;
    }
    try {
      if (!store) store = connect(news_store_);
      if (number == 0) number = std::stoll(store->get(kFirstNews, kNewsTime));
      auto news = parse_news(store->get(news_key(number), kNewsTime));
      ++number;
      if (!news) continue;
      const bool last = news->kind == LauncherNews::Kind::over;
      {
        const std::lock_guard lock(mutex_);
        news_.push_back(std::move(*news));
      }
      notify();
      if (last) return;
    } catch (const CommError&) {
      if (store) change([](LauncherNote&) {});  // the other thread finds out now what is lost
      store.reset();
      if (!pause(kRetryTime)) return;
    } catch (const std::exception&) {
      return;  // the other thread meets the same error, and reports it
    }
  }
}

}  // namespace mtrain::launch
