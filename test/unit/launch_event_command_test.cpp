// Tests the command that learns what happens to a job.
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "launch/event_command.h"
#include "test/support/temporary_folder.h"

namespace launch_event_command_test {

using namespace mtrain;
using namespace std::chrono_literals;
using Catch::Contains;
using launch::EventCommand;
using launch::JobEvent;

namespace {

struct Complaints {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::function<void(const std::string&)> take() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    };
  }
};

}  // namespace

TEST_CASE("the command gets each event as a line of JSON, in order") {
  const TemporaryFolder folder;
  const auto file = folder.path / "events";
  Complaints complaints;
  {
    // A shell that the user names is a program like any other; no words are added for it.
    EventCommand command({"sh", "-c", "cat >>\"$0\"", file.string()}, complaints.take());
    command.send({.event = "start", .run_dir = "runs/a b", .ranks = 2});
    command.send({.event = "failure", .step = 7, .culprit = 1, .message = "rank 1 \"x\"\n\xff"});
    command.send({.event = "end", .exit_code = 1});
  }
  CHECK(complaints.texts.empty());
  std::vector<nlohmann::json> events;
  for (std::string text = read_file(file.string()); !text.empty();) {
    const size_t end = text.find('\n');
    REQUIRE(end != std::string::npos);
    events.push_back(nlohmann::json::parse(text.substr(0, end)));
    text.erase(0, end + 1);
  }
  REQUIRE(events.size() == 3);
  CHECK(events[0]["event"] == "start");
  CHECK(events[0]["run_dir"] == "runs/a b");
  CHECK(events[0]["ranks"] == 2);
  CHECK_FALSE(events[0].contains("exit_code"));
  CHECK(events[1]["culprit"] == 1);
  CHECK(events[1]["step"] == 7);
  CHECK(events[2]["exit_code"] == 1);
}

TEST_CASE("a command that is too slow misses spikes first, then old events, never the end") {
  const TemporaryFolder folder;
  const auto file = folder.path / "events";
  Complaints complaints;
  {
    EventCommand command(
        {"sh", "-c", "while ! test -e \"$0.go\"; do sleep 0.01; done; cat >>\"$0\"", file.string()},
        complaints.take());
    command.send({.event = "start"});
    while (command.pending() > 0) std::this_thread::sleep_for(1ms);  // it runs
    command.send({.event = "failure"});
    for (int i = 0; i < 100; ++i) command.send({.event = "spike", .step = i});
    command.send({.event = "restart"});
    command.send({.event = "end", .exit_code = 1});
    CHECK(command.pending() == EventCommand::kMostPending);
    write_file_atomic(file.string() + ".go", "");
  }
  const std::string text = read_file(file.string());
  for (const char* event : {"start", "failure", "restart", "end"})
    CHECK_THAT(text, Contains(fmt::format("\"event\":\"{}\"", event)));
  CHECK_THAT(text, Contains("\"step\":99") && !Contains("\"step\":38}") && Contains("\"step\":39"));
  REQUIRE(complaints.texts.size() == 1);
  CHECK_THAT(complaints.texts.front(), Contains("takes too long"));
}

TEST_CASE("a command that fails, hangs or does not exist is reported once and disturbs nothing") {
  const auto fails = [](std::vector<std::string> words) {
    Complaints complaints;
    const auto began = std::chrono::steady_clock::now();
    {
      EventCommand command(std::move(words), complaints.take(), 300ms);
      for (int i = 0; i < 5; ++i) command.send({.event = "start"});
      CHECK(std::chrono::steady_clock::now() - began < 200ms);  // send() does not wait
    }
    CHECK(std::chrono::steady_clock::now() - began < 3s);
    REQUIRE(complaints.texts.size() == 1);
    return complaints.texts.front();
  };
  CHECK_THAT(fails({"/nonexistent/program"}), Contains("was not started: No such file"));
  CHECK_THAT(fails({"false"}), Contains("false ended with exit code 1"));
  CHECK_THAT(fails({"sleep", "1000"}), Contains("sleep was killed after 0.3 s"));
  CHECK_THAT(fails({"sh", "-c", "sleep 1000 & sleep 1000"}), Contains("was killed after 0.3 s"));
}

}  // namespace launch_event_command_test
