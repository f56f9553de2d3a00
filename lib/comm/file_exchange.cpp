#include "comm/file_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace mtrain::comm {

namespace fs = std::filesystem;

namespace {

// Operations, and the first letter of an answer.
constexpr char kPut = 'P', kFetch = 'G';
constexpr char kAccepted = '+', kPresent = '=', kRefused = '-';
constexpr size_t kMostName = 200, kMostReason = 2000;
constexpr int64_t kAtOnce = 1 << 20;  // bytes that an end keeps in memory

// A file that is written once, and removed unless it is complete.
class NewFile {
 public:
  explicit NewFile(fs::path path)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) {
    if (fd_ < 0) fail("create");
  }
  ~NewFile() {
    ::close(fd_);
    if (!complete_) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, data, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      data += n;
      bytes -= size_t(n);
    }
  }
  void complete() { complete_ = true; }

 private:
  [[noreturn]] void fail(const char* verb) const {
    throw RunError(fmt::format("cannot {} {}: {}", verb, path_.string(), std::strerror(errno)));
  }
  const fs::path path_;
  const int fd_;
  bool complete_ = false;
};

void receive_file(ProvenSocket& from, const fs::path& to, int64_t bytes) {
  NewFile file(to);
  std::vector<char> buffer(size_t(std::min(bytes, kAtOnce)));
  for (int64_t done = 0; done < bytes;) {
    const auto n = size_t(std::min<int64_t>(int64_t(buffer.size()), bytes - done));
    from.receive(buffer.data(), n);
    file.write(buffer.data(), n);
    done += int64_t(n);
  }
  file.complete();
}

// Calls `sent` with the bytes of each part that was sent.
void send_file(ProvenSocket& to, const RandomAccessFile& file, int64_t bytes,
               const std::function<void(int64_t)>& sent) {
  std::vector<char> buffer(size_t(std::min(bytes, kAtOnce)));
  for (int64_t done = 0; done < bytes;) {
    const auto n = size_t(std::min<int64_t>(int64_t(buffer.size()), bytes - done));
    file.read(done, n, buffer.data(), "a file for another host");
    to.send(buffer.data(), n);
    done += int64_t(n);
    sent(int64_t(n));
  }
}

std::string require_name(std::string name) {
  if (!is_exchanged_name(name)) throw CommError("a name that no peer sends");
  return name;
}

// Reads the answer to a request.
char receive_answer(ProvenSocket& from) {
  const char letter = from.receive_letter();
  if (letter == kRefused) throw RunError(from.receive_text(kMostReason));
  if (letter != kAccepted && letter != kPresent) throw CommError("an answer that no peer sends");
  return letter;
}

void refuse_request(ProvenSocket& to, const std::string& reason) {
  to.send_letter(kRefused);
  to.send_text(reason.substr(0, kMostReason));
}

}  // namespace

bool is_exchanged_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !name.empty() && name.size() <= kMostName && name[0] != '.' &&
         std::ranges::all_of(name, allowed);
}

// A thread accepts connections, and each connection has one that serves it.
class FileServer::Loop {
 public:
  explicit Loop(Options options)
      : options_(std::move(options)),
        listener_(listen_at(options_.address)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(stop_, &one, sizeof one);
    thread_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const Session& s : sessions_)
        if (!s.ended) shutdown(s.fd, SHUT_RDWR);
    }
    for (Session& s : sessions_) s.thread.join();
    close(listener_.fd);
    close(stop_);
  }
  uint16_t port() const { return listener_.port; }

 private:
  struct Session {
    int fd;
    // Guarded by mutex_.
    bool proven = false;   // it knows the token, and has a place
    bool dropped = false;  // another connection took its place before it was proven
    bool ended = false;    // the descriptor is closed
    std::thread thread = {};
  };

  void run() {
    for (;;) {
      pollfd fds[] = {{stop_, POLLIN, 0}, {listener_.fd, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[0].revents) return;
      const int fd = accept4(listener_.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      join_ended();
      if (fd < 0) {
        // Without free descriptors the listener stays ready.
        if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      begin(fd);
    }
  }

  void begin(int fd) {
    const std::lock_guard lock(mutex_);
    // Threads of connections that were dropped may still be there.
    if (sessions_.size() >= options_.most_peers + 2 * options_.most_strangers) {
      close(fd);
      return;
    }
    drop_oldest_stranger();
    Session& s = sessions_.emplace_back(Session{.fd = fd});
    try {
      s.thread = std::thread([this, &s] { serve(s); });
    } catch (const std::system_error&) {  // this host has too many threads
      sessions_.pop_back();
      close(fd);
    }
  }

  // Makes a place for a connection that has proved nothing yet. A peer proves itself within
  // milliseconds, so the oldest one is most probably a stranger. Sessions are in the order of their
  // connections.
  void drop_oldest_stranger() {
    const auto unproven = [](const Session& s) { return !s.proven && !s.dropped && !s.ended; };
    if (size_t(std::ranges::count_if(sessions_, unproven)) < options_.most_strangers) return;
    Session& oldest = *std::ranges::find_if(sessions_, unproven);
    oldest.dropped = true;
    shutdown(oldest.fd, SHUT_RDWR);
  }

  // Returns whether there is a place for another peer.
  bool takes_place(Session& s) {
    const std::lock_guard lock(mutex_);
    const auto peer = [](const Session& other) { return other.proven && !other.ended; };
    s.proven = size_t(std::ranges::count_if(sessions_, peer)) < options_.most_peers;
    return s.proven;
  }

  void join_ended() {
    std::list<Session> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto s = sessions_.begin(); s != sessions_.end();)
        if (const auto at = s++; at->ended) ended.splice(ended.end(), sessions_, at);
    }
    for (Session& s : ended) s.thread.join();
  }

  void serve(Session& s) {
    // A descriptor of its own: the other one stays open until `ended` is set.
    const int own = fcntl(s.fd, F_DUPFD_CLOEXEC, 0);
    if (own >= 0) talk(own, s);
    const std::lock_guard lock(mutex_);
    close(s.fd);
    s.ended = true;
  }

  void talk(int fd, Session& s) {
    try {
      ProvenSocket peer(fd, options_.socket);
      if (!takes_place(s)) return;
      for (;;) {
        const char operation = peer.receive_letter();
        if (operation == kPut)
          receive_folder(peer);
        else if (operation == kFetch)
          send_one(peer);
        else
          return;
      }
    } catch (const Error&) {  // the peer ends, or is a stranger: its own end reports what is lost
    }
  }

  void send_one(ProvenSocket& peer) {
    const std::string folder = require_name(peer.receive_text(kMostName)),
                      name = require_name(peer.receive_text(kMostName));
    std::optional<RandomAccessFile> file;
    try {
      file.emplace(options_.root / folder / name);
    } catch (const Error& e) {
      return refuse_request(peer, e.message());
    }
    peer.send_letter(kAccepted);
    peer.send_number(file->size());
    send_file(peer, *file, file->size(), [](int64_t) {});
  }

  struct Announced {
    std::string name;
    int64_t bytes = 0;
  };

  void receive_folder(ProvenSocket& peer) {
    const std::string folder = require_name(peer.receive_text(kMostName));
    const int64_t count = peer.receive_number();
    if (count < 1 || count > int64_t(kMostFiles)) throw CommError("too many files");
    std::vector<Announced> files;
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
      Announced f{require_name(peer.receive_text(kMostName)), peer.receive_number()};
      if (f.bytes < 0 || __builtin_add_overflow(total, f.bytes, &total))
        throw CommError("a size that no file has");
      files.push_back(std::move(f));
    }
    std::error_code error;
    const fs::path to = options_.root / folder;
    if (fs::exists(to, error)) return peer.send_letter(kPresent);
    const fs::path incoming =
        options_.root / fmt::format("{}{}.{}.{}", kIncoming, folder, ::getpid(), received_++);
    try {
      if (options_.admit) options_.admit(total);
      fs::create_directory(incoming);
    } catch (const std::exception& e) {
      return refuse_request(peer, e.what());
    }
    try {
      peer.send_letter(kAccepted);
      for (const Announced& f : files) receive_file(peer, incoming / f.name, f.bytes);
      fs::rename(incoming, to);
    } catch (const CommError&) {
      fs::remove_all(incoming, error);
      throw;
    } catch (const std::exception& e) {  // the rest of the files is not read
      fs::remove_all(incoming, error);
      refuse_request(peer, e.what());
      throw CommError("the folder is not complete");
    }
    peer.send_letter(kAccepted);
  }

  const Options options_;
  const Listener listener_;
  const int stop_;
  std::atomic<int64_t> received_ = 0;
  std::mutex mutex_;
  std::list<Session> sessions_;  // guarded by mutex_
  std::thread thread_;           // the last member: it uses the others
};

FileServer::FileServer(Options options) : loop_(std::make_unique<Loop>(std::move(options))) {}
FileServer::~FileServer() = default;
uint16_t FileServer::port() const { return loop_->port(); }

std::chrono::nanoseconds RateLimit::after(int64_t bytes,
                                          std::chrono::steady_clock::time_point now) {
  if (bytes_per_s_ <= 0) return {};
  const auto takes = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(double(bytes) / bytes_per_s_));
  next_ = std::max(next_, now) + takes;
  return next_ - now;
}

FileClient::FileClient(std::string address, uint16_t port, const ProvenSocket::Options& options,
                       std::chrono::milliseconds retry)
    : address_(std::move(address)), port_(port), options_(options), retry_(retry) {
  persistently([](ProvenSocket&) {}, {});
}

void FileClient::persistently(const Work& work, const std::function<void()>& meanwhile) {
  constexpr std::chrono::milliseconds kFirst{20}, kLongest{500};
  std::optional<std::chrono::steady_clock::time_point> end;
  for (auto wait = kFirst;; wait = std::min(2 * wait, kLongest)) {
    try {
      if (!socket_) socket_.emplace(address_, port_, options_);
      return work(*socket_);
    } catch (const ConnectionRefused&) {
      throw;
    } catch (const CommError&) {
      socket_.reset();
      const auto now = std::chrono::steady_clock::now();
      if (!end) end = now + retry_;
      if (stopped() || now + wait > *end) throw;
    } catch (...) {  // an operation that was not completed: the ends no longer agree
      socket_.reset();
      throw;
    }
    pause(wait, meanwhile);
  }
}

// Peers that were closed at the same time do not come back at the same time.
void FileClient::pause(std::chrono::milliseconds time,
                       const std::function<void()>& meanwhile) const {
  thread_local std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<int64_t> some(time.count() / 2, time.count());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(some(random));
  while (std::chrono::steady_clock::now() < end && !stopped()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (meanwhile) meanwhile();
  }
}

void FileClient::send_folder(const fs::path& folder, RateLimit& limit,
                             const std::function<void()>& meanwhile) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::list<RandomAccessFile> open;
  for (const fs::path& p : paths) open.emplace_back(p);
  const auto sent = [&](int64_t bytes) {
    const auto until = std::chrono::steady_clock::now();
    for (auto rest = limit.after(bytes, until); rest.count() > 0;) {
      constexpr std::chrono::nanoseconds kMost = std::chrono::milliseconds(100);
      const auto time = std::min(rest, kMost);
      std::this_thread::sleep_for(time);
      rest -= time;
      if (meanwhile) meanwhile();
    }
    if (meanwhile) meanwhile();
  };
  persistently(
      [&](ProvenSocket& to) {
        to.send_letter(kPut);
        to.send_text(folder.filename().string());
        to.send_number(int64_t(open.size()));
        for (const RandomAccessFile& f : open) {
          to.send_text(f.path().filename().string());
          to.send_number(f.size());
        }
        if (receive_answer(to) == kPresent) return;
        for (const RandomAccessFile& f : open) send_file(to, f, f.size(), sent);
        receive_answer(to);
      },
      meanwhile);
}

void FileClient::fetch(const std::string& folder, const std::string& file, const fs::path& to) {
  persistently(
      [&](ProvenSocket& from) {
        from.send_letter(kFetch);
        from.send_text(folder);
        from.send_text(file);
        receive_answer(from);
        const int64_t bytes = from.receive_number();
        if (bytes < 0) throw CommError("a size that no file has");
        receive_file(from, to, bytes);
      },
      {});
}

}  // namespace mtrain::comm
