// Tests what the launchers of a job may write into the store, and how much.
#include <deque>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "test/support/store_client.h"

namespace store_launcher_notes_test {

using namespace mtrain;
using namespace mtrain::store;

TEST_CASE("the server's process sees which launchers are here, and alone announces news") {
  StoreTable table{Token{}};
  const std::string news = std::string(kNews) + "1";
  Client reader(table, 0, kLaunchers), rank(table, 1, 0);
  CHECK(reader.ask(request_text(kGet, news, "")) == "waits");
  CHECK_FALSE(table.take_launcher_change());
  {
    Client launcher(table, 2, kLaunchers);
    CHECK(launcher.ask(request_text(kSet, "launcher/1", "here")) == "+");
    CHECK(table.take_launcher_change());
    CHECK(table.launcher_values().at("launcher/1").connected);
    for (const char operation : {kSet, kAdd, kRemove})
      CHECK(launcher.ask(request_text(operation, news, "1")).starts_with("-"));
    CHECK_FALSE(table.take_launcher_change());
  }
  CHECK(table.take_launcher_change());  // it has left
  CHECK(table.launcher_values().at("launcher/1").text == "here");
  CHECK_FALSE(table.launcher_values().at("launcher/1").connected);
  CHECK(rank.ask(request_text(kSet, news, "of a rank")) == "+");  // a key of its round
  table.set_launcher_value(news, "begin");
  CHECK(reader.replies().substr(4) == "+begin");
  CHECK_FALSE(table.launcher_values().contains(news));
}

TEST_CASE("a launcher sets one note of bounded size, and nothing else") {
  StoreTable table{Token{}};
  Client launcher(table, 0, kLaunchers);
  const std::string own = std::string(kNotes) + "1/a";
  CHECK(launcher.ask(request_text(kSet, own, "here")) == "+");
  CHECK(launcher.ask(request_text(kSet, own, std::string(kMaxNoteBytes, 'x'))) == "+");
  CHECK(launcher.ask(request_text(kSet, own, std::string(kMaxNoteBytes + 1, 'x'))) ==
        "-a note of more than 65536 bytes");
  for (const std::string& other :
       {std::string(kNotes) + "2/b", std::string("other"), std::string()})
    CHECK(launcher.ask(request_text(kSet, other, "x")) == "-a launcher sets its own note alone");
  Client second(table, 1, kLaunchers);
  CHECK(second.ask(request_text(kSet, std::string(kNotes) + std::string(kMaxNoteKeyBytes, 'k'), ""))
            .starts_with("-"));
  for (const char operation : {kAdd, kRemove, kPut, kAll, kMissing, kFail})
    CHECK(launcher.ask(request_text(operation, own, "1")) ==
          "-a launcher sets its note, and gets news");
  CHECK(table.launcher_values().size() == 1);
}

TEST_CASE("launchers that come and go without end leave room for the others and for news") {
  StoreTable table{Token{}};
  Client launcher(table, 0, kLaunchers);
  const std::string large(kMaxNoteBytes, 'x'), own = std::string(kNotes) + "0/here";
  REQUIRE(launcher.ask(request_text(kSet, own, large)) == "+");
  const auto come_and_go = [&](int n) {
    Client other(table, 1, kLaunchers);
    return other.ask(request_text(kSet, fmt::format("{}1/{}", kNotes, n), large));
  };
  const int many = int(StoreTable::kMaxLeftNotes) + 10;
  for (int n = 0; n < many; ++n) REQUIRE(come_and_go(n) == "+");
  CHECK(table.launcher_values().size() == StoreTable::kMaxLeftNotes + 1);
  CHECK(table.launcher_values().contains(own));
  CHECK_FALSE(table.launcher_values().contains("launcher/1/0"));  // the oldest
  CHECK(table.launcher_values().contains(fmt::format("launcher/1/{}", many - 1)));
  // One that comes back has left last.
  REQUIRE(come_and_go(20) == "+");
  for (int n = many; n < 2 * many - 30; ++n) REQUIRE(come_and_go(n) == "+");
  CHECK(table.launcher_values().contains("launcher/1/20"));
  CHECK_FALSE(table.launcher_values().contains("launcher/1/21"));

  // Those that stay are refused once half of the room is taken.
  std::deque<Client> stay;
  std::string reply = "+";
  for (int n = 0; n < 4000 && reply == "+"; ++n)
    reply = stay.emplace_back(table, n + 2, kLaunchers)
                .ask(request_text(kSet, fmt::format("{}2/{}", kNotes, n), large));
  CHECK(reply == "-the rendezvous is full");
  CHECK(stay.size() * large.size() <= StoreTable::kMaxNotesBytes);
  CHECK(launcher.ask(request_text(kSet, own, large)) == "+");
  for (int n = 0; n < 20; ++n)
    table.set_launcher_value(fmt::format("{}{}", kNews, n), std::string(kMaxValueBytes, 'n'));
  stay.clear();
  CHECK(come_and_go(0) == "+");
}

}  // namespace store_launcher_notes_test
