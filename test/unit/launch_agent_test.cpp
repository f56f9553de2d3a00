// Tests the parts of the launcher that need no ranks.
#include <sys/file.h>
#include <unistd.h>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "launch/agent.h"
#include "launch/job_folder.h"
#include "launch/output_stream.h"
#include "launch/port_claim.h"
#include "launch/signals.h"

namespace launch_agent_test {

using namespace mtrain;
using namespace mtrain::launch;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

TEST_CASE("a signal that reaches hosts one after the other is one request") {
  using Kind = EndRequests::Kind;
  const EndRequests::Clock::time_point t{5s};
  EndRequests ends;
  CHECK(ends.add_of_other(15, t) == Kind::first);
  CHECK(ends.signal() == 15);
  CHECK(ends.add_of_other(15, t + 2s) == Kind::repeat);
  CHECK(ends.add(15, t + 3s) == Kind::repeat);  // its own, from the same sender
  CHECK(ends.add(15, t + 3500ms) == Kind::repeat);
  CHECK(ends.add(15, t + 5s) == Kind::second);
}

TEST_CASE("signals within a second of the first are one request") {
  using Kind = EndRequests::Kind;
  const EndRequests::Clock::time_point t{5s};
  EndRequests ends;
  CHECK(ends.signal() == 0);
  CHECK(ends.add(SIGHUP, t) == Kind::first);
  CHECK(ends.add(SIGTERM, t) == Kind::repeat);
  CHECK(ends.add(SIGTERM, t + 999ms) == Kind::repeat);
  CHECK(ends.add(SIGTERM, t + 1000ms) == Kind::second);
  CHECK(ends.signal() == SIGHUP);
}

TEST_CASE("a key that is pressed again is a second request, a key that is held is not") {
  using Kind = EndRequests::Kind;
  const EndRequests::Clock::time_point t{5s};
  EndRequests ends;
  CHECK(ends.add(SIGINT, t, true) == Kind::first);
  CHECK(ends.add(SIGINT, t + 100ms, true) == Kind::repeat);
  CHECK(ends.add(SIGTERM, t + 500ms) == Kind::repeat);
  for (auto at = t + 500ms; at < t + 3s; at += 33ms)
    CHECK(ends.add(SIGINT, at, true) == Kind::repeat);
  CHECK(ends.add(SIGINT, t + 3500ms, true) == Kind::second);
  EndRequests quick;
  CHECK(quick.add(SIGINT, t, true) == Kind::first);
  CHECK(quick.add(SIGINT, t + 999ms, true) == Kind::repeat);
  CHECK(quick.add(SIGINT, t + 1300ms, true) == Kind::second);
}

TEST_CASE(
    "the first restart comes at once, and later ones wait twice as long each time, to a bound") {
  CHECK(restart_delay(1) == 0s);
  CHECK(restart_delay(2) == 1s);
  CHECK(restart_delay(3) == 2s);
  CHECK(restart_delay(6) == 16s);
  CHECK(restart_delay(7) == 30s);
  CHECK(restart_delay(1000000) == 30s);
}

TEST_CASE("a port has one launcher for each node") {
  const PortClaim first(29913, 0);
  CHECK_THROWS_WITH(PortClaim(29913, 0), Contains("another mtrain-launch"));
  const PortClaim other_node(29913, 1), other_port(29914, 0), any(0, 0);
  CHECK(any.port() != 0);
  { const PortClaim ends(29915, 0); }
  const PortClaim again(29915, 0);
}

TEST_CASE("folders of launchers that are gone are removed, those of living ones stay") {
  std::filesystem::path path;
  {
    const JobFolder living;
    path = living.path();
    std::ofstream(path / "file") << "x";
    // The folder of a killed launcher: nobody holds its lock.
    const std::filesystem::path dead = path.string() + "-dead";
    std::filesystem::create_directories(dead / "folder");
    remove_stale_job_folders();
    CHECK_FALSE(std::filesystem::exists(dead));
    CHECK(std::filesystem::exists(path / "file"));
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("pending text beyond the bound loses its oldest whole lines, and says how many") {
  PendingText text(100);
  for (int i = 10; i < 50; ++i) text.add("line " + std::to_string(i) + "\n");  // 8 bytes each
  const std::string all = text.take(1000);
  const auto left = size_t(std::count(all.begin(), all.end(), '\n')) - 1;
  CHECK_THAT(all,
             Catch::Matchers::StartsWith("mtrain-launch: " + std::to_string(40 - left) + " lines"));
  CHECK_THAT(all, Catch::Matchers::EndsWith("line 48\nline 49\n"));
  CHECK(all.size() < 200);
  CHECK(text.empty());
}

TEST_CASE("a line whose beginning is written keeps its end") {
  PendingText text(100);
  text.add("begin end\n");
  CHECK(text.take(5) == "begin");
  for (int i = 10; i < 50; ++i) text.add("line " + std::to_string(i) + "\n");
  CHECK_THAT(text.take(1000), Catch::Matchers::StartsWith(" end\nmtrain-launch: "));
}

TEST_CASE("progress lines and lines that never end are bounded, too") {
  PendingText progress(100), endless(100);
  for (int i = 0; i < 1000; ++i) progress.add("step 1\r"), endless.add("xxxxxxx");
  CHECK(progress.take(1000).size() < 200);
  CHECK(endless.take(1000).size() < 200);
}

TEST_CASE("a stream without a reader blocks no process") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  {
    OutputStream stream(ends[1]);
    const std::string line(99, 'x');
    for (int i = 0; i < 50000; ++i) stream.write(line + "\n");
    stream.finish(10ms, [] { return false; });
  }
  SUCCEED("no call has waited");  // the pipe stays open, since the thread still writes to it
}

TEST_CASE("a stream with a reader passes all on") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  OutputStream stream(ends[1]);
  stream.write("a\n");
  stream.write("b");
  stream.finish(5s, [] { return false; });
  char buffer[16];
  CHECK(read(ends[0], buffer, sizeof buffer) >= 2);
  close(ends[0]);
}

}  // namespace launch_agent_test
