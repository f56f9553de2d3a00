// Texts that ranks pass to each other through the store.
#include <thread>

#include <catch2/catch.hpp>

#include "comm/mailbox.h"
#include "store/store.h"
#include "store/store_protocol.h"
#include "store/store_session.h"
#include "test/support/comm_testing.h"

namespace comm_mailbox_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;

namespace {

void check_mailbox(Mailbox& one, Mailbox& other) {
  CHECK_FALSE(one.find("a"));
  other.put("a", "text");
  CHECK(one.find("a") == "text");
  CHECK(other.find("a") == "text");
  other.put("empty", "");
  CHECK(one.find("empty") == "");
  // Longer than a value of the store.
  std::string longest(2 * kMaxValueBytes + 3, 'x');
  longest.back() = 'y';
  one.put("long", longest);
  CHECK((other.find("long") == longest));
  other.remove("long");
  other.remove("never");
  CHECK_FALSE(one.find("long"));
  CHECK(one.find("a") == "text");
  // More than the store holds at once.
  for (size_t sent = 0; sent <= StoreTable::kMaxBytes; sent += longest.size()) {
    one.put("long", longest);
    CHECK(other.find("long").value_or("").size() == longest.size());
    one.remove("long");
  }
  CHECK_FALSE(other.find("b"));
}

}  // namespace

TEST_CASE("a mailbox has what any rank has put into it") {
  SECTION("of threads") {
    const auto box = shared_mailbox();
    check_mailbox(*box, *box);
    box->remove("a");
    CHECK_FALSE(box->find("a"));
  }
  SECTION("of processes") {
    const StoreAddress any{"127.0.0.1", 0, Token::random()};
    const StoreServer server(any);
    const auto one = store_mailbox(server.address(), std::chrono::seconds(10)),
               other = store_mailbox(server.address(), std::chrono::seconds(10));
    check_mailbox(*one, *other);
  }
}

TEST_CASE("ranks that train exchange texts in other threads") {
  run_ranks(3, "thread", [&](TestRank& rank) {
    const auto box = rank.world.mailbox();
    std::thread writer([&] { box->put(std::to_string(rank.rank()), "rank"); });
    for (int r = 0; r < 3; ++r)
      while (!box->find(std::to_string(r))) std::this_thread::yield();
    writer.join();
  });
  CHECK(World::alone().mailbox());
}

}  // namespace comm_mailbox_test
