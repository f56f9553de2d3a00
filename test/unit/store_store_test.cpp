// Tests the store against strangers and clients: nobody without the token gets an answer, and
// nobody gets memory or descriptors without a bound.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "store/rendezvous_host.h"
#include "store/store.h"
#include "store/store_protocol.h"
#include "store/store_session.h"
#include "test/support/store_client.h"

namespace store_store_test {

using namespace mtrain;
using namespace mtrain::store;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

StoreAddress any_port() { return {"127.0.0.1", 0, Token::random()}; }

// A connection that may send anything.
class Stranger {
 public:
  explicit Stranger(const StoreAddress& at) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(at.port);
    // A stranger that cannot connect does no harm; other threads may make one.
    [[maybe_unused]] const int n = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a);
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void say(std::string_view bytes) const {
    [[maybe_unused]] const auto n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns the bytes that arrive until there are so many, the server ends the connection, or the
  // time has passed.
  std::string hear(size_t bytes, std::chrono::milliseconds patience = 5s) const {
    std::string in;
    const auto deadline = Clock::now() + patience;
    while (in.size() < bytes && Clock::now() < deadline) {
      pollfd p{fd_, POLLIN, 0};
      if (poll(&p, 1, 10) <= 0) continue;
      char buffer[4096];
      const ssize_t n = recv(fd_, buffer, std::min(sizeof buffer, bytes - in.size()), 0);
      if (n <= 0) return in;
      in.append(buffer, size_t(n));
    }
    return in;
  }
  // Returns whether the server has ended the connection, or does so soon.
  bool is_closed(std::chrono::milliseconds patience = 5s) const {
    pollfd p{fd_, POLLIN | POLLRDHUP, 0};
    char byte;
    return poll(&p, 1, int(patience.count())) > 0 && recv(fd_, &byte, 1, MSG_PEEK) <= 0;
  }
  // Proves as a rank does, with this token.
  void prove(const Token& token) const {
    const Nonce own = make_nonce();
    std::string hello(kStoreGreeting);
    say(hello.append(bytes_of(own)));
    const std::string in = hear(kHelloBytes + kProofBytes);
    if (in.size() < kHelloBytes + kProofBytes) return;
    Nonce server;
    std::memcpy(server.data(), in.data() + kStoreGreeting.size(), server.size());
    const Proof proof = make_proof(token, StoreEnd::client, own, server);
    say(bytes_of(proof));
  }

 private:
  int fd_;
};

// A sanitizer needs several times the program's memory; without bounds both tests would take 300
// MiB.
constexpr int64_t kMaxKib = 40 << 10;

int64_t memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  return 0;
}

std::string text_of(const Nonce& nonce) { return std::string(bytes_of(nonce)); }

}  // namespace

TEST_CASE("a token is 32 bytes in 64 digits, and nothing else") {
  const Token token = Token::random();
  CHECK(token.hex().size() == 64);
  CHECK(Token::parse(token.hex()) == token);
  CHECK_FALSE(Token::random() == token);
  std::string upper = token.hex();
  for (char& c : upper) c = char(std::toupper(c));
  CHECK(Token::parse(upper) == token);
  for (const std::string& wrong :
       {std::string(), token.hex().substr(1), token.hex() + "0", " " + token.hex().substr(1),
        "0x" + token.hex().substr(2), std::string(63, '0') + "g"})
    CHECK_FALSE(Token::parse(wrong));
}

TEST_CASE("a proof depends on the token, on both nonces and on the end that proves") {
  const Token token = Token::random(), other = Token::random();
  const Nonce a = make_nonce(), b = make_nonce();
  const std::set<Proof> proofs{
      make_proof(token, StoreEnd::client, a, b), make_proof(token, StoreEnd::server, a, b),
      make_proof(token, StoreEnd::client, b, a), make_proof(other, StoreEnd::client, a, b),
      make_proof(token, StoreEnd::client, a, make_nonce())};
  CHECK(proofs.size() == 5);
}

TEST_CASE("a stranger gets no answer but a greeting, whatever it says") {
  const StoreServer server(any_port());
  Store rank(server.address(), 10s);
  rank.set("recipe", "a secret");
  const std::string greeting(kStoreGreeting), ask = request_text(kGet, "recipe", "");
  const std::string hello = greeting + text_of(make_nonce());
  SECTION("a request instead of a greeting") {
    const Stranger s(server.address());
    s.say(ask);
    CHECK(s.is_closed());
  }
  SECTION("an older version") {
    const Stranger s(server.address());
    s.say("mtrain store 2\n" + ask);
    CHECK(s.is_closed());
  }
  SECTION("a request instead of a proof") {
    const Stranger s(server.address());
    s.say(hello + ask + std::string(100, 'x'));
    CHECK(s.hear(1000).size() <= kHelloBytes + kProofBytes);
    CHECK(s.is_closed());
  }
  SECTION("another token") {
    const Stranger s(server.address());
    s.prove(Token::random());
    s.say(ask);
    CHECK(s.is_closed());
  }
  SECTION("the server's own proof, sent back") {
    const Stranger s(server.address());
    s.say(hello);
    const std::string in = s.hear(kHelloBytes + kProofBytes);
    REQUIRE(in.size() == kHelloBytes + kProofBytes);
    s.say(in.substr(kHelloBytes) + ask);
    CHECK(s.is_closed());
  }
  SECTION("a replay of a rank's messages is refused") {
    const Nonce own = make_nonce();
    std::string said;
    {
      const Stranger right(server.address());
      right.say(greeting + text_of(own));
      const std::string in = right.hear(kHelloBytes + kProofBytes);
      Nonce nonce;
      std::memcpy(nonce.data(), in.data() + greeting.size(), nonce.size());
      const Proof proof = make_proof(server.address().token, StoreEnd::client, own, nonce);
      said = std::string(bytes_of(proof));
      right.say(said + ask);
      CHECK(right.hear(1) == std::string(1, kWelcome));
    }
    const Stranger s(server.address());
    s.say(greeting + text_of(own) + said + ask);
    s.hear(kHelloBytes + kProofBytes);
    CHECK(s.is_closed());
  }
  CHECK(rank.get("recipe") == "a secret");
}

TEST_CASE("a rank gives nothing to a server that does not know the token") {
  const StoreServer server(any_port());
  StoreAddress other = server.address();
  other.token = Token::random();
  const auto start = Clock::now();
  CHECK_THROWS_AS(Store(other, 10s), OtherJobError);
  CHECK(Clock::now() - start < 5s);
}

TEST_CASE("half greetings and half requests cost no memory") {
  const StoreServer server(any_port());
  Store rank(server.address(), 10s);
  std::vector<std::unique_ptr<Stranger>> strangers;
  const int64_t before = memory_kib();
  std::string half(1, kSet);
  append_text(half, "key");
  half += std::string("\x00\xff\xff\xff", 4) + std::string(1 << 20, 'x');
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<Stranger>(server.address()));
    for (int n = 0; n < 15; ++n) strangers.back()->say(half);
    strangers.push_back(std::make_unique<Stranger>(server.address()));
    strangers.back()->say(kStoreGreeting.substr(0, 7));
  }
  rank.set("here", "v");
  CHECK(rank.get("here") == "v");
  CHECK(memory_kib() - before < kMaxKib);
}

TEST_CASE("a new stranger takes the oldest one's place, and never that of a rank") {
  const StoreServer server(any_port());
  Store rank(server.address(), 10s);
  std::vector<std::unique_ptr<Stranger>> strangers;
  const auto come = [&] { strangers.push_back(std::make_unique<Stranger>(server.address())); };
  for (size_t i = 0; i < StoreServer::kMaxStrangers; ++i) come();
  CHECK_FALSE(strangers[0]->is_closed(100ms));
  come();
  CHECK(strangers[0]->is_closed());
  CHECK_FALSE(strangers[2]->is_closed(50ms));
  Store another(server.address(), 10s);  // ranks come in among them
  rank.set("a", "b");
  CHECK(another.get("a") == "b");
}

TEST_CASE("strangers who say nothing are closed before one that has greeted") {
  const StoreServer server(any_port());
  std::vector<std::unique_ptr<Stranger>> strangers;
  const auto come = [&] { strangers.push_back(std::make_unique<Stranger>(server.address())); };
  come();
  strangers[0]->say(std::string(kStoreGreeting) + text_of(make_nonce()));
  CHECK(strangers[0]->hear(kHelloBytes + kProofBytes).size() == kHelloBytes + kProofBytes);
  for (size_t i = 1; i < StoreServer::kMaxStrangers; ++i) come();
  std::this_thread::sleep_for(100ms);
  come();
  CHECK(strangers[1]->is_closed());
  CHECK_FALSE(strangers[0]->is_closed(50ms));
}

TEST_CASE("strangers who reconnect without end delay a rank by less than a second") {
  const StoreServer server(any_port());
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      std::deque<std::unique_ptr<Stranger>> open;
      while (!over) {
        open.push_back(std::make_unique<Stranger>(server.address()));
        if (open.size() > 200) open.pop_front();
      }
    });
  std::this_thread::sleep_for(200ms);
  const auto start = Clock::now();
  Store rank(server.address(), 20s);
  rank.set("a", "b");
  const auto took = Clock::now() - start;
  over = true;
  for (auto& t : threads) t.join();
  CHECK(took < 1s);
}

TEST_CASE("descriptors are left for the job, and a server without any does not spin") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const StoreServer server(any_port());
  Store rank(server.address(), 10s);
  const int lowest = dup(0);
  close(lowest);
  // The next descriptors of this process are within the reserved ones.
  rlimit low = before;
  low.rlim_cur = rlim_t(lowest + 40);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::vector<int> taken;
  const auto take_all = [&] {
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
    return taken.size();
  };
  const auto release = [&] {
    for (const int fd : std::exchange(taken, {})) close(fd);
  };
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(std::make_unique<Stranger>(server.address()));
  std::this_thread::sleep_for(100ms);
  const size_t left = take_all();  // 40 minus the strangers' own ends (20) and the server's (1)
  release();
  strangers.clear();
  std::this_thread::sleep_for(50ms);
  const int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  take_all();
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(server.port());
  const int connected = ::connect(late, reinterpret_cast<sockaddr*>(&a), sizeof a);
  const clock_t cpu = clock();
  std::this_thread::sleep_for(300ms);
  const double busy = double(clock() - cpu) / CLOCKS_PER_SEC;
  rank.set("c", "d");
  release();
  close(late);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(connected == 0);
  CHECK(left >= 15);
  CHECK(busy < 0.1);
  CHECK(rank.get("c") == "d");
  CHECK_NOTHROW(Store(server.address(), 10s));
}

TEST_CASE("a client that never reads costs a bounded queue, and the others nothing") {
  const StoreServer server(any_port());
  Store rank(server.address(), 10s);
  rank.set("large", std::string(4 << 20, 'x'));
  const int64_t before = memory_kib();
  const Stranger s(server.address());
  s.prove(server.address().token);
  REQUIRE(s.hear(1) == std::string(1, kWelcome));
  for (int i = 0; i < 60; ++i) s.say(request_text(kGet, "large", ""));
  rank.set("a", "b");
  CHECK(rank.get("a") == "b");
  CHECK(memory_kib() - before < kMaxKib);
}

TEST_CASE("every request with every other request's payload is answered or refused") {
  struct Payload {
    const char* what;
    std::string bytes;
  };
  const auto request = [](const std::string& key, const std::string& value) {
    return request_text('?', key, value).substr(1);
  };
  const Payload payloads[] = {
      {"of a set", request("key", "value")},
      {"of a get", request("key", "")},
      {"of a wait", request("never set", "")},
      {"of an add", request("number", "1")},
      {"of a failure", request("", "rank 1 gave up")},
      {"of a question for it", request("", "")},
      {"a number that overflows", request("number", "9223372036854775807")},
      {"a number with a tail", request("number", "1x")},
      {"zero bytes", request(std::string(3, '\0'), std::string(3, '\0'))},
      {"a key that is too long", request(std::string(kMaxKeyBytes + 1, 'k'), "v")},
      {"lengths beyond all bounds", std::string(8, '\xff')},
      {"a path", request("channel/dp", "/etc/passwd")},
      {"a member", request("members", "1 2\ntext")},
      {"a member beyond all", request("members", "2 2\ntext")},
      {"too many members", request("members", "0 99999999999\n")},
  };
  for (const Payload& p : payloads)
    for (int operation = 0; operation < 256; ++operation) {
      CAPTURE(p.what, operation);
      StoreTable table{Token{}};
      Client other(table, 0), client(table, 1);
      CHECK(other.ask(request_text(kSet, "key", "old")) == "+");
      CHECK(other.ask(request_text(kAdd, "number", "5")) == "+5");
      const std::string reply = client.ask(char(operation) + p.bytes);
      const bool known = std::string("ESGARFPLM").find(char(operation)) != std::string::npos;
      if (!known) CHECK(reply == "ended");
      CHECK((reply == "ended" || reply == "waits" || reply[0] == kAnswer || reply[0] == kNone ||
             (operation == kEnter && reply[0] == kOtherJob)));
      // The other client is served as before.
      CHECK(other.ask(request_text(kSet, "still", "here")) == "+");
      CHECK(other.ask(request_text(kGet, "still", "")) == "+here");
    }
}

TEST_CASE("a request in pieces is the same request") {
  StoreTable table{Token{}};
  Client client(table, 0);
  const std::string text = request_text(kSet, "key", "value") + request_text(kGet, "key", "");
  std::string all;
  for (const char c : text) {
    REQUIRE(client.session.receive({&c, 1}));
    all += client.replies();
  }
  std::string expected;
  append_text(expected, "+");
  append_text(expected, "+value");
  CHECK(all == expected);
}

TEST_CASE("a client that leaves while it waits is forgotten") {
  StoreTable table{Token{}};
  Client rank(table, 0);
  {
    Client gone(table, 1);
    CHECK(gone.ask(request_text(kGet, "late", "")) == "waits");
    Client answered(table, 2);
    CHECK(answered.ask(request_text(kGet, "late", "")) == "waits");
    CHECK(rank.ask(request_text(kSet, "late", "v")) == "+");
    CHECK(answered.replies().substr(4) == "+v");
  }
  CHECK(table.take_woken().empty());
  CHECK(rank.ask(request_text(kSet, "late", "w")) == "+");
}

TEST_CASE("a store has room for so many bytes, and says when it is full") {
  StoreTable table{Token{}};
  Client client(table, 0);
  const std::string large(kMaxValueBytes, 'x');
  std::string reply;
  size_t stored = 0;
  for (; stored < 100; ++stored) {
    reply = client.ask(request_text(kSet, std::to_string(stored), large));
    if (reply != "+") break;
  }
  CHECK(reply == "-the rendezvous is full");
  CHECK(stored * kMaxValueBytes <= StoreTable::kMaxBytes);
  CHECK(client.ask(request_text(kSet, "0", "small")) == "+");  // makes room
  CHECK(client.ask(request_text(kSet, "more", "small")) == "+");
}

TEST_CASE("the reason of a failure is truncated to its limit") {
  const StoreServer server(any_port());
  Store a(server.address(), 10s), b(server.address(), 10s);
  a.fail(std::string(100000, 'x'));
  CHECK(b.failure() == std::string(kMaxReasonBytes, 'x'));
}

TEST_CASE("members exchange texts with two requests each") {
  StoreTable table{Token{}};
  Client a(table, 0), b(table, 1), c(table, 2);
  const auto put = [](int64_t member, int64_t size, const std::string& text) {
    return request_text(kPut, "addresses", membership_text({member, size, text}));
  };
  CHECK(a.ask(request_text(kMissing, "addresses", "3")) == "+0-2");
  CHECK(a.ask(put(0, 3, "x")) == "+1");
  CHECK(a.ask(put(0, 3, "again")) == "+0");
  CHECK(a.ask(request_text(kMissing, "addresses", "3")) == "+1-2");
  CHECK(a.ask(request_text(kAll, "addresses", "")) == "waits");
  CHECK(b.ask(put(1, 4, "x")) == "-`addresses` has 3 members, not 4");
  CHECK(b.ask(put(2, 3, "z")) == "+1");
  CHECK(c.ask(request_text(kMissing, "addresses", "3")) == "+1");
  // A value with the same key is another thing.
  CHECK(c.ask(request_text(kSet, "addresses", "value")) == "+");
  CHECK(a.replies().empty());
  CHECK(c.ask(put(1, 3, "x")) == "+1");
  const std::string all = a.replies().substr(4);
  CHECK(all[0] == kAnswer);
  CHECK(texts_of_runs(all.substr(1), 3) == std::vector<std::string>{"x", "x", "z"});
  CHECK(b.ask(request_text(kAll, "addresses", "")) == all);
  CHECK(c.ask(request_text(kMissing, "addresses", "3")) == "+");
}

TEST_CASE("the texts of a collection fit in one reply") {
  StoreTable table{Token{}};
  Client a(table, 0);
  const std::string half(kMaxValueBytes / 2, 'x');
  CHECK(a.ask(request_text(kPut, "c", membership_text({0, 3, half}))) == "+1");
  CHECK(a.ask(request_text(kPut, "c", membership_text({1, 3, half}))) == "-the rendezvous is full");
  CHECK(a.ask(request_text(kPut, "c", membership_text({1, 3, "small"}))) == "+1");
  // Members that never come cost memory, too, which is bounded.
  std::string reply;
  int made = 0;
  for (; made < 1000; ++made) {
    reply = a.ask(request_text(kPut, std::to_string(made), membership_text({0, kMaxMembers, ""})));
    if (reply != "+1") break;
  }
  CHECK(reply == "-the rendezvous is full");
  CHECK(made < 100);
}

TEST_CASE("runs of texts and lists of numbers are read as they were written, or refused") {
  for (const std::vector<std::string>& texts :
       {std::vector<std::string>{}, {""}, {"a", "a", "b", "", "", "a"}})
    CHECK(texts_of_runs(texts_in_runs(texts), int64_t(texts.size())) == texts);
  const std::string runs = texts_in_runs({"a", "a"});
  for (const std::string& wrong : {runs + "x", runs.substr(1), runs + runs, std::string(8, '\xff')})
    CHECK_THROWS_AS(texts_of_runs(wrong, 2), CommError);
  CHECK_THROWS_AS(texts_of_runs(runs, 3), CommError);
  for (const std::vector<int64_t>& numbers : {std::vector<int64_t>{}, {0}, {0, 1, 2}, {1, 3, 4, 9}})
    CHECK(parse_numbers(numbers_text(numbers), 10) == numbers);
  CHECK(numbers_text({1, 3, 4, 9}) == "1,3-4,9");
  for (const char* wrong : {"a", "1-", "-1", "3-1", "10", "0-99999999", "1,1", "2,1", "1;2"})
    CHECK_THROWS_AS(parse_numbers(wrong, 10), CommError);
}

TEST_CASE("a rank of an older round gets a reason to end, and finds nothing of the newer one") {
  StoreTable table{Token{}};
  Client old(table, 0), waits(table, 1), launcher(table, 2, kLaunchers);
  CHECK(old.ask(request_text(kSet, "k", "old")) == "+");
  CHECK(launcher.ask(request_text(kSet, "launcher/k", "of launchers")) == "+");
  CHECK(waits.ask(request_text(kGet, "late", "")) == "waits");
  Client early(table, 3, 2), sooner(table, 4, 1);
  CHECK(early.entered == "waits");
  CHECK(sooner.entered == "waits");
  { const Client gone(table, 5, 1); }
  table.begin_round(1);
  const std::string reason =
      "<start 0 of this job has ended: all ranks have been restarted as start 1";
  CHECK(waits.replies().substr(4) == reason);
  CHECK(old.ask(request_text(kGet, "k", "")) == reason);
  CHECK(old.ask(request_text(kSet, "k", "still old")) == reason);
  CHECK(Client(table, 6, 0).entered == reason);
  CHECK(early.replies().empty());
  CHECK(sooner.replies().substr(4) == "+");
  CHECK(sooner.ask(request_text(kGet, "k", "")) == "waits");
  CHECK(Client(table, 7, 1).ask(request_text(kSet, "k", "new")) == "+");
  CHECK(sooner.replies().substr(4) == "+new");
  CHECK(launcher.ask(request_text(kGet, "launcher/k", "")) == "+of launchers");
  table.begin_round(3);  // nobody has come in round 2
  CHECK(early.replies().substr(4) ==
        "<start 2 of this job has ended: all ranks have been restarted as start 3");
}

TEST_CASE("a failure ends with its round") {
  StoreServer server(any_port());
  Store first(server.address(), 10s);
  server.fail_round("rank 1 was killed");
  CHECK_THROWS_WITH(first.get("never"), "rank 1 was killed");
  server.begin_round(1);
  CHECK_THROWS_AS(first.get("never"), OldRoundError);
  CHECK_THROWS_AS(first.set("a", "b"), OldRoundError);
  Store second(server.address(), 10s);
  CHECK(second.failure().empty());
  StoreAddress old = server.address(), other = server.address(), later = server.address();
  old.round = 0;
  other.job = "another";
  later.round = 2;
  const auto start = Clock::now();
  CHECK_THROWS_AS(Store(old, 10s), OldRoundError);
  CHECK_THROWS_AS(Store(other, 10s), OtherJobError);
  CHECK(Clock::now() - start < 5s);
  CHECK_THROWS_WITH(Store(later, 200ms), Catch::Matchers::Contains("start 2 of the ranks has not"));
}

TEST_CASE("ranks of one host meet where no other host can come") {
  for (const char* name : {"localhost", "127.0.0.1", "127.0.0.2"}) {
    CAPTURE(name);
    CHECK(rendezvous_host(name, true).listens == "127.0.0.1");
    CHECK(rendezvous_host(name, true).reached == "127.0.0.1");
  }
  // If the ranks are not known to be on one host, the store listens only at the address that they
  // were given.
  CHECK(rendezvous_host("localhost", false).listens == "127.0.0.1");
  CHECK(rendezvous_host("127.0.0.2", false).listens == "127.0.0.2");
  CHECK(rendezvous_host("127.0.0.2", false).reached == "127.0.0.2");
  // The ranks still connect to an address of another host (RFC 5737: nobody has it).
  CHECK(rendezvous_host("192.0.2.1", true).reached == "192.0.2.1");
  CHECK(rendezvous_host("192.0.2.1", false).listens.empty());
}

}  // namespace store_store_test
