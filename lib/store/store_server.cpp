#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <vector>

#include "store/store.h"
#include "store/store_session.h"

namespace mtrain::store {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kStrangerTime =
    10s;  // the time in which a connection must prove that it knows the token
// A connection is not closed for another one before this age: a rank's proof takes about as long
// while strangers keep all cores busy.
constexpr auto kMinAge = 10ms;
constexpr auto kMinAgeGreeted = 250ms;  // a proof may wait for a busy or distant rank
constexpr int kAcceptsAtOnce = 16;      // before clients that have sent something are served
constexpr int kReadsAtOnce = 16;        // from one client, before others are served

// Returns the lowest number of a file descriptor that is reserved for the rest of the process.
int first_reserved_descriptor() {
  rlimit most{};
  if (getrlimit(RLIMIT_NOFILE, &most) < 0 ||
      most.rlim_cur > rlim_t(std::numeric_limits<int>::max()))
    return std::numeric_limits<int>::max();
  return std::max(1, int(most.rlim_cur) - StoreServer::kReservedDescriptors);
}

}  // namespace

int64_t allow_connections(int64_t connections) {
  constexpr int64_t kOwn = 256;  // files and sockets of the process itself
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) < 0) return connections;
  const auto needed = rlim_t(connections + kOwn);
  if (files.rlim_cur < needed) {
    rlimit more = files;
    more.rlim_cur = std::min(needed, files.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) files = more;
  }
  return std::clamp<int64_t>(int64_t(std::min<rlim_t>(files.rlim_cur, needed)) - kOwn, 0,
                             connections);
}

// One thread serves all connections.
class StoreServer::Loop {
 public:
  Loop(int listener, const StoreAddress& at)
      : listener_(listener),
        called_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        table_(at.token, at.job, at.round) {
    watch(EPOLL_CTL_ADD, called_, EPOLLIN);
    watch(EPOLL_CTL_ADD, listener_, EPOLLIN);
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    call(nullptr);
    thread_.join();
    clients_.clear();
    for (const int fd : {epoll_, listener_, called_}) close(fd);
  }

  // Runs the function in the thread that owns the table, and returns after it. Null ends the
  // thread.
  void call(std::function<void(StoreTable&)> function) {
    std::promise<void> done;
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back({std::move(function), &done});
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(called_, &one, sizeof one);
    done.get_future().get();
  }

  void await_launchers(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    launchers_.wait_for(lock, most, [&] { return launchers_changed_; });
    launchers_changed_ = false;
  }

 private:
  struct Client {
    Client(int descriptor, StoreTable& table) : fd(descriptor), session(table, fd, make_nonce()) {}
    ~Client() { close(fd); }
    const int fd;
    const Clock::time_point accepted = Clock::now();
    uint32_t events = EPOLLIN;
    StoreSession session;
  };

  struct Call {
    std::function<void(StoreTable&)> function;
    std::promise<void>* done;
  };

  // Returns false if the thread must end.
  bool serve_calls() {
    uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(called_, &count, sizeof count);
    std::vector<Call> calls;
    {
      const std::lock_guard lock(mutex_);
      calls.swap(calls_);
    }
    bool ends = false;
    for (const Call& c : calls) {
      ends = ends || !c.function;
      try {
        if (c.function) c.function(table_);
        c.done->set_value();
      } catch (...) {
        c.done->set_exception(std::current_exception());
      }
    }
    flush_woken();
    return !ends;
  }

  void run() {
    for (;;) {
      epoll_event events[64];
      const int n = epoll_wait(epoll_, events, 64, milliseconds_to_wait());
      if (n < 0 && errno != EINTR) return;
      bool knocks = false;
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (fd == called_ && !serve_calls()) return;
        if (fd == listener_) knocks = true;
        // An earlier event of this round may have closed the connection.
        if (const auto found = clients_.find(fd); found != clients_.end())
          serve(*found->second, events[i].events);
      }
      const auto now = Clock::now();
      while (!strangers_.empty() && now - oldest().accepted > kStrangerTime) drop(oldest().fd);
      if (paused_until_ && now >= *paused_until_) {
        paused_until_.reset();
        watch(EPOLL_CTL_MOD, listener_, EPOLLIN);
      }
      if (knocks && !paused_until_) try_to_accept();
      report_launchers();
    }
  }

  void report_launchers() {
    if (!table_.take_launcher_change()) return;
    const std::lock_guard lock(mutex_);
    launchers_changed_ = true;
    launchers_.notify_all();
  }

  // Memory may be short for a while.
  void try_to_accept() {
    try {
      accept_some();
    } catch (const std::bad_alloc&) {
      pause_until(Clock::now() + 100ms);
    }
  }

  int milliseconds_to_wait() const {
    auto until = Clock::time_point::max();
    if (!strangers_.empty()) until = oldest().accepted + kStrangerTime + 1ms;
    if (paused_until_) until = std::min(until, *paused_until_);
    if (until == Clock::time_point::max()) return -1;
    return int(
        std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Clock::now(), 0ns)).count());
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      const auto now = Clock::now();
      const Client* const closable = find_closable(now);
      // Not longer than kMinAge: meanwhile strangers may prove that they are ranks.
      if (strangers_.size() >= kMaxStrangers && !closable)
        return pause_until(std::min(first_closable(), now + kMinAge));
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EAGAIN) return;
        if (errno == EINTR || errno == ECONNABORTED) continue;
        // No descriptor or no memory is left. The connection stays in the listener's queue, and
        // epoll would report it again at once.
        if (strangers_.empty()) return pause_until(now + 100ms);
        drop((closable ? *closable : oldest()).fd);
        continue;
      }
      if (strangers_.size() >= kMaxStrangers ||
          (fd >= first_reserved_descriptor() && !strangers_.empty()))
        drop((closable ? *closable : oldest()).fd);
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      auto client = std::make_unique<Client>(fd, table_);
      if (!watch(EPOLL_CTL_ADD, fd, client->events)) continue;
      clients_.emplace(fd, std::move(client));
      strangers_.push_back(fd);
    }
  }

  void pause_until(Clock::time_point time) {
    paused_until_ = time;
    watch(EPOLL_CTL_MOD, listener_, 0);
  }

  void serve(Client& c, uint32_t events) {
    bool well = (events & EPOLLERR) == 0;
    if (well && (events & (EPOLLIN | EPOLLHUP))) well = read(c);
    well = well && flush(c);
    if (!well) drop(c.fd);
    flush_woken();
  }

  void flush_woken() {
    // The request may have ended the waits of other clients, whose requests may do the same.
    for (auto woken = table_.take_woken(); !woken.empty(); woken = table_.take_woken())
      for (const int fd : woken)
        if (const auto found = clients_.find(fd); found != clients_.end() && !flush(*found->second))
          drop(fd);
  }

  // Returns false when the connection has ended.
  bool read(Client& c) {
    char buffer[65536];
    for (int i = 0; i < kReadsAtOnce && c.session.reads(); ++i) {
      const bool stranger = !c.session.knows_token();
      const ssize_t n = recv(c.fd, buffer, stranger ? kHelloBytes + kProofBytes : sizeof buffer, 0);
      if (n == 0) return false;
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      if (!c.session.receive({buffer, size_t(n)})) return false;
      if (!stranger || !c.session.knows_token()) continue;
      strangers_.remove(c.fd);
      if (paused_until_) paused_until_ = Clock::now();  // there is room for another stranger
    }
    return true;
  }

  bool flush(Client& c) {
    for (;;) {
      const std::string_view out = c.session.next_output();
      if (out.empty()) break;
      const ssize_t n = send(c.fd, out.data(), out.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n < 0) break;
      if (!c.session.sent(size_t(n))) return false;
    }
    const uint32_t events = (c.session.reads() ? uint32_t(EPOLLIN) : 0u) |
                            (c.session.next_output().empty() ? 0u : uint32_t(EPOLLOUT));
    if (events != c.events) watch(EPOLL_CTL_MOD, c.fd, c.events = events);
    return true;
  }

  bool watch(int operation, int fd, uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll_, operation, fd, &event) == 0;
  }

  const Client& oldest() const { return *clients_.at(strangers_.front()); }

  // When a stranger may be closed for another one.
  static Clock::time_point closable_at(const Client& c) {
    return c.accepted + (c.session.has_greeted() ? kMinAgeGreeted : kMinAge);
  }
  Clock::time_point first_closable() const {
    auto first = Clock::time_point::max();
    for (const int fd : strangers_) first = std::min(first, closable_at(*clients_.at(fd)));
    return first;
  }
  // Returns the stranger to close for a new one: the oldest that has not greeted, or else the
  // oldest that has. Null: none is old enough.
  const Client* find_closable(Clock::time_point now) const {
    const Client* greeted = nullptr;
    for (const int fd : strangers_) {
      const Client& c = *clients_.at(fd);
      if (closable_at(c) > now) continue;
      if (!c.session.has_greeted()) return &c;
      if (!greeted) greeted = &c;
    }
    return greeted;
  }

  void drop(int fd) {
    strangers_.remove(fd);
    clients_.erase(fd);
  }

  const int listener_, called_, epoll_;
  StoreTable table_;
  std::unordered_map<int, std::unique_ptr<Client>> clients_;  // after table_, which they use
  std::list<int> strangers_;  // descriptors of clients without a proof, the oldest first
  std::optional<Clock::time_point> paused_until_;  // the listener is not watched until then
  std::mutex mutex_;
  std::vector<Call> calls_;         // guarded by mutex_
  bool launchers_changed_ = false;  // guarded by mutex_
  std::condition_variable launchers_;
  std::thread thread_;  // the last member: it uses the others
};

namespace {

struct Listening {
  int fd = -1;
  int error = 0;
};

// Makes a socket that listens at one address.
Listening listen_at(const addrinfo& a, bool all_addresses) {
  Listening l{socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const int on = 1, off = 0;
  if (l.fd >= 0) {
    setsockopt(l.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.ai_family == AF_INET6 && all_addresses)
      setsockopt(l.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(l.fd, a.ai_addr, a.ai_addrlen) == 0 && listen(l.fd, 4096) == 0) return l;
  }
  l.error = errno;
  if (l.fd >= 0) close(l.fd);
  return {-1, l.error};
}

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

StoreServer::StoreServer(const StoreAddress& at) : address_(at) {
  const bool all = at.host.empty();
  Listening l{-1, EADDRNOTAVAIL};
  // The IPv6 wildcard address accepts IPv4 too. The IPv4 wildcard is for hosts without IPv6.
  for (const int family : {all ? AF_INET6 : AF_UNSPEC, AF_INET}) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (getaddrinfo(all ? nullptr : at.host.c_str(), std::to_string(at.port).c_str(), &hints,
                    &found) != 0)
      continue;
    l = listen_at(*found, all);
    freeaddrinfo(found);
    if (l.fd >= 0 || !all || l.error == EADDRINUSE) break;
  }
  if (l.fd < 0)
    throw UserError(fmt::format("cannot serve the rendezvous at port {}{}: {}", at.port,
                                all ? "" : " of " + at.host, std::strerror(l.error)),
                    "another job may use it: choose another port with --master_port (MASTER_PORT)");
  address_.port = port_of(l.fd);
  if (all) address_.host = "localhost";
  loop_ = std::make_unique<Loop>(l.fd, at);
}

StoreServer::~StoreServer() = default;

void StoreServer::begin_round(int64_t round) {
  loop_->call([&](StoreTable& table) { table.begin_round(round); });
  address_.round = round;
}

void StoreServer::fail_round(const std::string& reason) {
  loop_->call([&](StoreTable& table) { table.fail_round(reason); });
}

void StoreServer::await_launchers(std::chrono::milliseconds most) { loop_->await_launchers(most); }

std::map<std::string, LauncherValue> StoreServer::launcher_values() {
  std::map<std::string, LauncherValue> values;
  loop_->call([&](StoreTable& table) { values = table.launcher_values(); });
  return values;
}

void StoreServer::set_launcher_value(const std::string& key, const std::string& value) {
  loop_->call([&](StoreTable& table) { table.set_launcher_value(key, value); });
}

}  // namespace mtrain::store
