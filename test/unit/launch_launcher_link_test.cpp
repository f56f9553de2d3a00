// Tests how a launcher notices that the one that leads is gone.
#include "launch/launcher_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <thread>

#include <catch2/catch.hpp>

namespace launch_launcher_link_test {

using namespace mtrain;
using namespace mtrain::launch;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

LauncherLink::Options options_of(store::StoreAddress at) {
  at.round = store::kLaunchers;
  return {.at = at,
          .find_token = [token = at.token] { return std::optional(token); },
          .to_connect = 1500ms,
          .note = {.id = "id1", .host = "h1", .node = 1}};
}

bool becomes_true(const std::function<bool()>& what, std::chrono::milliseconds within = 10s) {
  for (const auto until = Clock::now() + within; Clock::now() < until;) {
    if (what()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

TEST_CASE("a leader whose process has ended is noticed within two seconds") {
  std::optional<store::StoreServer> leader(store::StoreAddress{"127.0.0.1", 0, Token::random()});
  LauncherLink link(options_of(leader->address()));
  REQUIRE(becomes_true([&] { return link.has_connected(); }));
  leader.reset();
  const auto ended = Clock::now();
  REQUIRE(becomes_true([&] { return !link.lost().empty(); }));
  CHECK(link.is_leader_dead());
  CHECK(Clock::now() - ended > 900ms);
  CHECK(Clock::now() - ended < 2s);
}

TEST_CASE("a leader that listens and does not answer may be stopped: it is not dead") {
  std::optional<store::StoreServer> leader(store::StoreAddress{"127.0.0.1", 0, Token::random()});
  LauncherLink link(options_of(leader->address()));
  REQUIRE(becomes_true([&] { return link.has_connected(); }));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(leader->port());
  const int mute = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(mute, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  leader.reset();
  REQUIRE(bind(mute, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(listen(mute, 64) == 0);
  CHECK_FALSE(becomes_true([&] { return link.is_leader_dead() || !link.lost().empty(); }, 2500ms));
  close(mute);
  CHECK(becomes_true([&] { return link.is_leader_dead(); }, 5s));
}

TEST_CASE("a leader that has not been reached yet is awaited, and is not dead") {
  store::StoreAddress nobody{"127.0.0.1", 0, Token::random()};
  nobody.port = store::StoreServer(nobody).port();
  LauncherLink link(options_of(nobody));
  const auto began = Clock::now();
  REQUIRE(becomes_true([&] { return !link.lost().empty(); }));
  CHECK(Clock::now() - began > 1500ms);
  CHECK_FALSE(link.is_leader_dead());
}

TEST_CASE("a leader may leave once it has announced the end of the job") {
  std::optional<store::StoreServer> leader(store::StoreAddress{"127.0.0.1", 0, Token::random()});
  LauncherLink link(options_of(leader->address()));
  leader->set_launcher_value(news_key(1), text_of(LauncherNews{.kind = LauncherNews::Kind::over}));
  leader->set_launcher_value(kFirstNews, "1");
  REQUIRE(becomes_true([&] { return link.news().has_value(); }));
  leader.reset();
  REQUIRE(becomes_true([&] { return link.is_leader_dead(); }));
  CHECK(link.lost().empty());
  CHECK(link.news()->kind == LauncherNews::Kind::over);
}

}  // namespace launch_launcher_link_test
