#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "comm/process/arrival_watch.h"

namespace comm_arrival_watch_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;
using namespace std::chrono_literals;

namespace {

// The messages of a watch.
class Said {
 public:
  std::function<void(const std::string&)> take() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      text_ = text;
      changed_.notify_all();
    };
  }
  std::string next() {
    std::unique_lock lock(mutex_);
    text_.clear();
    changed_.wait_for(lock, 5s, [&] { return !text_.empty(); });
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
};

}  // namespace

TEST_CASE("a rank that waits says for whom: the server, hosts, or ranks") {
  const Token token = Token::random();
  StoreServer server({"127.0.0.1", 0, token});
  Store ranks(server.address(), 5s);
  Said said;
  ArrivalWatch watch({.size = 4,
                      .local_size = 2,
                      .where = "host0:29500",
                      .timeout = 600s,
                      .quiet = 1ms,
                      .tell = said.take()});
  CHECK(said.next() == "waiting for rank 0 at host0:29500 (600 s)");
  ranks.put(kBegun, 0, 4, "");
  watch.joined(server.address());
  CHECK(said.next() == "waiting for 1 of 2 hosts at host0:29500 (600 s)");
  ranks.put(kBegun, 2, 4, "");
  CHECK(said.next() == "waiting for 2 of 4 ranks at host0:29500 (600 s)");
}

TEST_CASE("ranks that meet soon say nothing of waiting") {
  bool said = false;
  {
    const ArrivalWatch watch({.size = 2,
                              .where = "host0:29500",
                              .timeout = 600s,
                              .quiet = 5s,
                              .tell = [&](const std::string&) { said = true; }});
  }
  CHECK_FALSE(said);
}

}  // namespace comm_arrival_watch_test
