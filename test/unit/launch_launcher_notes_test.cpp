// Tests the texts by which the launchers of a job speak to each other.
#include "launch/launcher_notes.h"

#include <catch2/catch.hpp>

#include "store/store_protocol.h"

namespace launch_launcher_notes_test {

using namespace mtrain::launch;
using Kind = LauncherNews::Kind;

TEST_CASE("notes and news are read as they were written, and others are refused") {
  LauncherNote note{.id = "x", .host = "h\xff", .node = 2, .ranks = 3, .round = 4};
  note.cause = RoundCause{.weight = 0, .step = 7, .rank = 5, .message = "m", .text = "t\n"};
  const auto read = parse_note(text_of(note));
  REQUIRE(read);
  CHECK(read->node == 2);
  CHECK(read->cause->rank == 5);
  CHECK(read->cause->text == "t\n");
  LauncherNews news{.kind = Kind::run, .round = 3, .members = {{1, "a", 2, 2}}, .world = 4};
  news.restarts = true;
  news.delay_s = 2.5;
  const auto read_news = parse_news(text_of(news));
  REQUIRE(read_news);
  CHECK(read_news->members.at(0).first_rank == 2);
  CHECK(read_news->restarts);
  CHECK(read_news->delay_s == 2.5);
  for (const std::string text : {"", "{}", "[]", "{\"id\": 1}", "null", "{\"kind\":\"run\"}"}) {
    CHECK_FALSE(parse_note(text));
    CHECK_FALSE(parse_news(text));
  }
  note.cause->text = note.cause->message = std::string(100000, '\n');  // two bytes each
  CHECK(text_of(note).size() <= mtrain::store::kMaxNoteBytes);
  CHECK(parse_note(text_of(note))->cause->text.size() > 5000);
  note.cause.reset();
  std::string damaged = text_of(note);
  damaged.replace(damaged.find("\"node\":2"), 8, "\"node\":-2");
  CHECK_FALSE(parse_note(damaged));
}

}  // namespace launch_launcher_notes_test
