// Measures how long a job's ranks need to meet at the store: each puts its address, and gets the
// addresses of all.
//   bench_rendezvous [clients] [runs]      default: 4096 5
// The server has its one thread, and all clients share another. Prints the median in seconds.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/error.h"
#include "store/store.h"
#include "store/store_protocol.h"

using namespace mtrain;
using namespace mtrain::store;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kAddresses = "addresses";

// A client's side of the protocol, on a socket that does not block.
class Client {
 public:
  Client(const StoreAddress& at, int64_t rank, int64_t size) : at_(at), rank_(rank), size_(size) {}
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void connect(int epoll) {
    close(fd_);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) throw RunError(fmt::format("no socket: {}", std::strerror(errno)));
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(at_.port);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) < 0 && errno != EINPROGRESS)
      throw RunError(fmt::format("cannot connect: {}", std::strerror(errno)));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.ptr = this;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd_, &event) < 0) throw RunError("epoll_ctl");
    in_.clear();
    expected_ = kHelloBytes + kProofBytes;
    state_ = State::hello;
    nonce_ = make_nonce();
    out_ = std::string(kStoreGreeting).append(bytes_of(nonce_));
  }

  // Returns true when this client has all addresses. The server may close a connection before it
  // has proved anything: the client then connects again.
  bool advance(int epoll) {
    for (;;) {
      if (!flush()) return connect(epoll), false;
      char buffer[65536];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) return false;
      if (n <= 0) return connect(epoll), false;
      in_.append(buffer, size_t(n));
      while (in_.size() >= expected_)
        if (act()) return true;
    }
  }

 private:
  enum class State { hello, welcome, entered, put, all };

  bool flush() {
    while (!out_.empty()) {
      const ssize_t n = send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == ENOTCONN;
      out_.erase(0, size_t(n));
    }
    return true;
  }

  void ask(State next, const std::string& request, size_t expected = sizeof(uint32_t) + 1) {
    state_ = next;
    out_ += request;
    expected_ = expected;
    flush();
  }

  // Handles the reply that has arrived.
  bool act() {
    if (state_ == State::hello) {
      Nonce server;
      std::memcpy(server.data(), in_.data() + kStoreGreeting.size(), server.size());
      in_.clear();
      const Proof proof = make_proof(at_.token, StoreEnd::client, nonce_, server);
      ask(State::welcome, std::string(bytes_of(proof)), 1);
      return false;
    }
    if (state_ == State::welcome) {
      in_.erase(0, 1);
      ask(State::entered, request_text(kEnter, at_.job, std::to_string(at_.round)));
      return false;
    }
    size_t at = 0;
    const auto reply = take_text(in_, at, kMaxValueBytes + 1);
    if (!reply) {
      expected_ = in_.size() + 1;
      return false;
    }
    if (reply->empty() || (*reply)[0] != kAnswer) throw RunError("refused: " + std::string(*reply));
    if (state_ == State::all) {
      const auto texts = texts_of_runs(reply->substr(1), size_);
      if (texts[size_t(rank_)] != address()) throw RunError("the addresses are others");
      return true;
    }
    const bool entered = state_ == State::entered;
    in_.erase(0, at);
    if (entered)
      ask(State::put, request_text(kPut, kAddresses, membership_text({rank_, size_, address()})));
    else
      ask(State::all, request_text(kAll, kAddresses, ""));
    return false;
  }

  std::string address() const {
    return fmt::format("10.{}.{}.{}:{}", rank_ >> 16, rank_ >> 8 & 255, rank_ & 255, 30000 + rank_);
  }

  const StoreAddress& at_;
  const int64_t rank_, size_;
  int fd_ = -1;
  State state_ = State::hello;
  Nonce nonce_{};
  std::string in_, out_;
  size_t expected_ = 0;
};

double seconds_to_meet(int64_t clients) {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::deque<Client> all;
  for (int64_t rank = 0; rank < clients; ++rank) all.emplace_back(server.address(), rank, clients);
  const auto start = Clock::now();
  for (Client& c : all) c.connect(epoll);
  for (int64_t met = 0; met < clients;) {
    epoll_event events[64];
    const int n = epoll_wait(epoll, events, 64, 10000);
    if (n == 0)
      throw RunError(fmt::format("{} of {} clients wait without end", clients - met, clients));
    for (int i = 0; i < n; ++i) met += static_cast<Client*>(events[i].data.ptr)->advance(epoll);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  close(epoll);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t clients = argc > 1 ? std::atoll(argv[1]) : 4096;
    const int runs = argc > 2 ? std::atoi(argv[2]) : 5;
    if (allow_connections(2 * clients) < 2 * clients)
      throw RunError(fmt::format("{} clients need {} open files", clients, 2 * clients),
                     "raise the limit with ulimit -Hn");
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) times.push_back(seconds_to_meet(clients));
    std::ranges::sort(times);
    std::printf("%lld clients meet in %.2f s (median of %d, from %.2f to %.2f)\n",
                static_cast<long long>(clients), times[times.size() / 2], runs, times.front(),
                times.back());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
