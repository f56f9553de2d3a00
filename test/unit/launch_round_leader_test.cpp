// Tests the decisions of the launcher that leads a job on several hosts.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "launch/round_leader.h"

namespace launch_round_leader_test {

using namespace mtrain::launch;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Kind = LauncherNews::Kind;
using State = LauncherNote::State;
using Time = RoundLeader::Clock::time_point;

// A job with tp 1 whose global batch has so many micro-batches.
int largest_divisor(int batch, int ranks) {
  while (ranks > 0 && batch % ranks != 0) --ranks;
  return ranks;
}

LeaderOptions options_of(int least, int most, int batch, int tp = 1) {
  LeaderOptions o{.min_nodes = least, .max_nodes = most, .max_restarts = 3};
  o.largest_world = [=](int ranks) { return tp * largest_divisor(batch, ranks / tp); };
  o.layout = [=](int world) { return fmt::format("dp_size {}", world / tp); };
  o.nearest_worlds = [](int) { return std::string("nearest"); };
  o.timeout = 60s;
  return o;
}

struct RoundCase {
  const char* what;
  std::vector<std::pair<int, int>> hosts;  // node and ranks
  int least, batch, tp;
  const char* expected;  // "node:first+ranks", for every host
};

const RoundCase kRoundCases[] = {
    {"all ranks fit", {{0, 2}, {1, 2}, {2, 2}}, 1, 12, 1, "0:0+2 1:2+2 2:4+2"},
    {"a host is a spare", {{0, 2}, {1, 2}, {2, 2}}, 1, 8, 1, "0:0+2 1:2+2 2:4+0"},
    {"ranks keep the order of hosts", {{0, 2}, {2, 2}}, 1, 8, 1, "0:0+2 2:2+2"},
    {"a host has spare ranks", {{0, 4}, {1, 4}}, 1, 6, 1, "0:0+4 1:4+2"},
    {"hosts of different sizes", {{0, 1}, {3, 3}}, 1, 4, 1, "0:0+1 3:1+3"},
    {"tp stays", {{0, 2}, {1, 2}, {2, 2}}, 1, 4, 4, "0:0+2 1:2+2 2:4+0"},
    {"the last host", {{0, 2}}, 1, 8, 1, "0:0+2"},
    {"too few hosts", {{0, 2}}, 2, 8, 1, ""},
    {"too few ranks for tp", {{0, 2}, {1, 1}}, 1, 8, 4, ""},
    {"host 0 is not here", {{1, 2}, {2, 2}}, 1, 8, 1, ""},
};

TEST_CASE("dp is the largest that hosts and global batch allow, and other ranks are spares") {
  for (const RoundCase& c : kRoundCases) {
    INFO(c.what);
    std::vector<LauncherNote> hosts;
    for (const auto& [node, ranks] : c.hosts)
      hosts.push_back({.id = std::to_string(node), .node = node, .ranks = ranks});
    std::vector<std::string> found;
    for (const RoundMember& m : members_of_round(hosts, options_of(c.least, 9, c.batch, c.tp)))
      found.push_back(fmt::format("{}:{}+{}", m.node, m.first_rank, m.ranks));
    CHECK(fmt::format("{}", fmt::join(found, " ")) == c.expected);
  }
}

// A job as its leader sees it. Every look() takes 100 ms.
class Job {
 public:
  explicit Job(LeaderOptions options)
      : leader_([&] {
          options.newest_checkpoint = [this] { return checkpoint; };
          return options;
        }()) {}

  std::optional<int64_t> checkpoint = -1;

  LauncherNote& host(int node, const std::string& id = "") {
    SeenLauncher& seen = seen_[fmt::format("{}/{}", node, id)];
    if (seen.note.id.empty())
      seen.note = {.id = fmt::format("id{}{}", node, id),
                   .host = fmt::format("h{}", node),
                   .node = node,
                   .ranks = 2};
    return seen.note;
  }
  void disconnect(int node) { seen_[fmt::format("{}/", node)].connected = false; }
  void connect(int node) { seen_[fmt::format("{}/", node)].connected = true; }
  void forget(int node) { seen_.erase(fmt::format("{}/", node)); }
  void freeze(int node) { frozen_.push_back(node); }

  // All hosts begin the round that was announced, or stop as they were asked to.
  void run(std::vector<int> nodes, int64_t round) { set(nodes, round, State::running, false); }
  void end(std::vector<int> nodes, int64_t round, bool well = false) {
    set(nodes, round, State::ended, well);
  }
  void fail(int node, int64_t round, RoundCause cause) {
    set({node}, round, State::ended, false);
    host(node).cause = std::move(cause);
  }

  // Returns the kinds that were announced, and keeps the news.
  std::string look(std::chrono::milliseconds time = 100ms) {
    news.clear();
    constexpr const char* kWords[] = {"run", "end", "kill", "signal", "cause", "over", "refuse"};
    std::string words;
    lines.clear();
    for (const auto until = now_ + time; now_ < until;) {
      now_ += 100ms;
      for (auto& [key, seen] : seen_)
        if (seen.connected && std::ranges::count(frozen_, seen.note.node) == 0) ++seen.note.beat;
      for (const LauncherNews& n : leader_.look(seen_, now_)) {
        words += (words.empty() ? "" : " ") + std::string(kWords[size_t(n.kind)]);
        for (const std::string& line : n.lines) lines += line + "\n";
        last = n;
        news.push_back(n);
      }
    }
    return words;
  }
  // Nothing is seen for this time, in which the other launchers continue.
  void stall(std::chrono::milliseconds time) { now_ += time; }
  // Returns the launchers that were asked to begin one by one.
  std::string admitted() const {
    std::string ids;
    for (const LauncherNews& n : news)
      if (n.kind == Kind::run) ids += (ids.empty() ? "" : " ") + n.id;
    return ids;
  }
  std::string members() const {
    std::string text;
    for (const RoundMember& m : last.members)
      if (m.ranks > 0) text += std::to_string(m.node);
    return text;
  }

  LauncherNews last;
  std::vector<LauncherNews> news;
  std::string lines;

 private:
  void set(const std::vector<int>& nodes, int64_t round, State state, bool well) {
    for (const int node : nodes) {
      host(node).round = round;
      host(node).state = state;
      host(node).well = well;
    }
  }
  std::map<std::string, SeenLauncher> seen_;
  std::vector<int> frozen_;
  Time now_{};
  RoundLeader leader_;
};

TEST_CASE("a fixed number of hosts begins at once, and ends when all have ended well") {
  Job job(options_of(2, 2, 4));
  job.host(0);
  CHECK(job.look() == "run");
  CHECK(job.last.members.empty());
  CHECK(job.admitted() == "id0");
  job.run({0}, 0);
  CHECK(job.look() == "");
  job.host(1);
  CHECK(job.look() == "run");
  CHECK(job.admitted() == "id1");
  job.run({0, 1}, 0);
  CHECK(job.look() == "");
  job.end({0}, 0, true);
  CHECK(job.look() == "");
  job.end({1}, 0, true);
  CHECK(job.look() == "over");
  CHECK(job.last.code == 0);
}

// Both hosts of a job begin its first round.
void begin_fixed(Job& job) {
  job.host(0), job.host(1);
  REQUIRE(job.look() == "run run");
  job.run({0, 1}, 0);
  REQUIRE(job.look() == "");
}

TEST_CASE("one cause is agreed: a rank that died comes before errors about peers") {
  Job job(options_of(2, 2, 4));
  begin_fixed(job);
  job.fail(0, 0, {.weight = 2, .rank = 0, .message = "lost a peer", .text = "comm"});
  CHECK(job.look() == "end");
  CHECK(job.look() == "");
  job.fail(1, 0, {.weight = 0, .rank = 2, .message = "was killed", .text = "killed"});
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("killed") && Contains("restarting all ranks (1 of 3)"));
  CHECK_THAT(job.lines, !Contains("comm"));
  CHECK(job.last.restarts);
  CHECK(job.last.delay_s == 0);
  CHECK(job.look() == "run run");
  CHECK(job.last.round == 1);
  CHECK(job.last.restarts_left == 2);
  // The second failure in a row is followed by a wait, and the last one by the end.
  for (int64_t round = 1; round < 4; ++round) {
    job.run({0, 1}, round);
    job.end({0}, round);
    job.fail(1, round, {.weight = 0, .step = 5 + round, .rank = 2, .message = "was killed"});
    CHECK(job.look() == "end");
    CHECK(job.look() == (round < 3 ? "cause" : "cause over"));
    const LauncherNews cause = job.news.at(0);
    CHECK(cause.restarts == (round < 3));
    CHECK(cause.delay_s == (round < 3 ? double(round) : 0));
    job.look(3s);
  }
}

TEST_CASE("a user's mistake and a signal are not restarted") {
  Job mistake(options_of(2, 2, 4));
  begin_fixed(mistake);
  mistake.fail(0, 0, {.weight = 1, .exit_code = 2, .rank = 0});
  mistake.fail(1, 0, {.weight = 2, .rank = 2});
  mistake.look();
  CHECK(mistake.look() == "cause over");
  CHECK(mistake.last.code == 2);

  Job signal(options_of(2, 2, 4));
  begin_fixed(signal);
  signal.host(1).signal = 15;
  CHECK(signal.look() == "signal");
  signal.host(1).second = true;
  CHECK(signal.look() == "kill");
  signal.fail(1, 0, {.weight = 1, .exit_code = 143, .interrupted = true});
  signal.fail(0, 0, {.weight = 1, .exit_code = 143, .interrupted = true});
  signal.look();
  CHECK(signal.look() == "cause over");
  CHECK(signal.last.code == 143);
}

// A job of 1 to 3 hosts, which has begun with as many.
void begin_elastic(Job& job, std::vector<int> nodes) {
  for (const int node : nodes) job.host(node);
  job.look(nodes.size() == 3 ? 100ms : 5200ms);
  REQUIRE(job.last.kind == Kind::run);
  job.run(nodes, 0);
  REQUIRE(job.look() == "");
}

TEST_CASE("a round closes when all hosts are here, or some time after the minimum") {
  Job all(options_of(1, 3, 12)), some(options_of(2, 3, 12)), none(options_of(2, 3, 12));
  for (const int node : {0, 1, 2}) all.host(node);
  CHECK(all.look() == "run");
  CHECK(all.members() == "012");
  for (const int node : {0, 2}) some.host(node);
  CHECK(some.look(4900ms) == "");
  CHECK(some.look(300ms) == "run");
  CHECK(some.members() == "02");
  CHECK_THAT(some.lines, Contains("4 ranks on hosts 0, 2, dp_size 4"));
  none.host(0);
  CHECK(none.look(59s) == "cause");
  CHECK(none.look(2s) == "over");
  CHECK(none.last.code == 1);
  CHECK_THAT(none.lines, Contains("1 of 2 to 3 hosts are here"));
}

TEST_CASE("a lost host is left out, and joins again at the next checkpoint") {
  Job job(options_of(1, 3, 12));
  begin_elastic(job, {0, 1, 2});
  job.disconnect(1);
  CHECK(job.look(1400ms) == "");
  CHECK(job.look(300ms) == "end");
  job.fail(0, 0, {.weight = 2, .step = 12, .rank = 0, .message = "lost a peer"});
  job.fail(2, 0, {.weight = 2, .step = 13, .rank = 4, .message = "lost a peer"});
  CHECK(job.look() == "cause");
  CHECK(job.last.cause->step == 13);
  CHECK_THAT(job.lines, Contains("host 1 (h1) is gone"));
  CHECK(job.look() == "run");
  CHECK(job.members() == "02");
  job.run({0, 2}, 1);
  job.checkpoint = 20;
  CHECK(job.look() == "");
  job.host(1, "again");
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("host 1 (h1) will join at the next checkpoint"));
  CHECK(job.look(30s) == "");
  job.checkpoint = 40;
  CHECK(job.look() == "cause kill");
  CHECK_THAT(job.lines, Contains("joins after the checkpoint of step 40"));
  job.end({0, 2}, 1);
  CHECK(job.look(200ms) == "run");
  CHECK(job.members() == "012");
  CHECK(job.last.round == 2);
}

TEST_CASE("a host that does not answer is lost when its lease has run out") {
  Job job(options_of(1, 3, 12));
  begin_elastic(job, {0, 1, 2});
  job.freeze(2);
  CHECK(job.look(9800ms) == "");
  CHECK(job.look(400ms) == "end");
}

TEST_CASE("a host whose note the store has forgotten is lost") {
  Job job(options_of(1, 3, 12));
  begin_elastic(job, {0, 1, 2});
  job.forget(2);
  CHECK(job.look() == "end");
  job.fail(0, 0, {.weight = 2, .step = 12, .rank = 0, .message = "lost a peer"});
  job.fail(1, 0, {.weight = 2, .step = 12, .rank = 2, .message = "lost a peer"});
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("host 2 (h2) is gone"));
  CHECK(job.look() == "run");
  CHECK(job.members() == "01");
}

TEST_CASE("a host that would be a spare does not end a round") {
  Job job(options_of(1, 3, 4));
  begin_elastic(job, {0, 1});
  job.host(2);
  job.checkpoint = 20;
  CHECK(job.look(5s) == "");
}

TEST_CASE("restarts count until there is a new checkpoint") {
  Job job(options_of(1, 2, 4));
  for (const int node : {0, 1}) job.host(node);
  REQUIRE(job.look() == "run");
  for (int64_t round = 0; round < 12; ++round) {
    job.run({0, 1}, round);
    REQUIRE(job.look() == "");
    if (round % 3 == 2) *job.checkpoint += 10;
    job.end({1}, round);
    // Another rank each time: they do not fail alike.
    job.fail(0, round, {.weight = 0, .step = 5, .rank = int(round), .message = "was killed"});
    REQUIRE(job.look() == "end");
    REQUIRE(job.look() == "cause");
    REQUIRE(job.look(40s) == "run");
  }
  for (int64_t round = 12; round < 15; ++round) {
    job.run({0, 1}, round);
    REQUIRE(job.look() == "");
    job.end({1}, round);
    job.fail(0, round, {.weight = 0, .step = 5, .rank = int(round), .message = "was killed"});
    REQUIRE(job.look() == "end");
    job.look(40s);
  }
  CHECK(job.last.kind == Kind::over);
  CHECK(job.last.code == 1);
}

TEST_CASE("a rank that fails alike at the same step twice ends the job") {
  for (const bool same_step : {true, false}) {
    Job job(options_of(2, 2, 4));
    job.host(0), job.host(1);
    job.look();
    for (int64_t round = 0; round < 2; ++round) {
      job.run({0, 1}, round);
      job.look();
      job.end({0}, round);
      job.fail(1, round,
               {.weight = 0,
                .step = same_step ? 17 : 17 + round,
                .rank = 3,
                .message = fmt::format("rank 3 (pid {}) was killed", 100 + round)});
      REQUIRE(job.look() == "end");
      job.look(1500ms);
    }
    CHECK((job.last.kind == Kind::over) == same_step);
    if (same_step)
      CHECK_THAT(job.last.lines[0], Contains("rank 3 has failed twice") && Contains("step 17"));
  }
}

TEST_CASE("a second launcher with the same number is refused, and the job continues") {
  Job job(options_of(2, 2, 4));
  begin_fixed(job);
  // It never begins; whatever it writes about itself does not count.
  LauncherNote& stranger = job.host(1, "other");
  stranger.round = 0;
  stranger.state = State::ended;
  stranger.cause = RoundCause{.weight = 0, .exit_code = 2, .rank = 2, .message = "taken"};
  CHECK(job.look(1400ms) == "");
  CHECK(job.look(300ms) == "refuse");
  CHECK(job.last.id == "id1other");
  CHECK(job.last.code == 2);
  CHECK_THAT(job.lines, Contains("host 1 (h1) cannot join: another launcher has --node_rank=1"));
  CHECK(job.look(60s) == "");
  job.end({0, 1}, 0, true);
  CHECK(job.look() == "over");
  CHECK(job.last.code == 0);
}

TEST_CASE("a launcher that replaces a lost one begins with the next round") {
  Job job(options_of(2, 2, 4));
  begin_fixed(job);
  job.disconnect(1);
  job.host(1, "again");
  CHECK(job.look(1400ms) == "");
  CHECK(job.look(300ms) == "end");
  job.fail(0, 0, {.weight = 2, .rank = 0, .message = "lost a peer"});
  CHECK(job.look() == "cause");
  CHECK(job.look() == "run run");
  CHECK(job.admitted() == "id0 id1again");
}

TEST_CASE("a host whose number is too large is refused") {
  Job job(options_of(2, 2, 4));
  begin_fixed(job);
  job.host(2);
  CHECK(job.look() == "refuse");
  CHECK_THAT(job.lines, Contains("host 2 (h2) cannot join: the job has 2 hosts"));
}

TEST_CASE("the time in which the leader was stopped does not count") {
  Job broken(options_of(1, 3, 12));
  begin_elastic(broken, {0, 1, 2});
  broken.disconnect(1);
  broken.stall(30s);
  CHECK(broken.look(1s) == "");  // it connects again
  Job job(options_of(1, 3, 12));
  begin_elastic(job, {0, 1, 2});
  job.freeze(2);
  job.stall(9s);
  CHECK(job.look(8s) == "");
  CHECK(job.look(2s) == "end");  // after the stall it is missed as always
}

// A job of two hosts has trained, and host 2 has joined in round 1.
void begin_joined(Job& job) {
  begin_elastic(job, {0, 1});
  job.host(2);
  job.checkpoint = 20;
  CHECK(job.look(200ms) == "cause");
  job.checkpoint = 40;
  CHECK(job.look() == "cause kill");
  job.end({0, 1}, 0);
  CHECK(job.look(200ms) == "run");
  REQUIRE(job.members() == "012");
  job.run({0, 1, 2}, 1);
  REQUIRE(job.look() == "");
}

TEST_CASE("a host that joins and fails is refused, and the job continues without it") {
  struct Row {
    const char* what;
    int by;  // the host that reports the first cause
    RoundCause cause;
    std::optional<int64_t> checkpoint;
    bool refused;
  };
  const Row rows[] = {
      {"its rank fails", 2, {.weight = 1, .rank = 4, .message = "no data here"}, 40, true},
      {"its rank is killed", 2, {.weight = 0, .rank = 4, .message = "was killed"}, 40, false},
      {"another host reports its recipe",
       0,
       {.weight = 1, .exit_code = 2, .rank = 0, .message = "no data here"},
       40,
       true},
      {"another host fails", 0, {.weight = 0, .rank = 0, .message = "was killed"}, 40, false},
      {"it has trained", 2, {.weight = 0, .rank = 4, .message = "was killed"}, 60, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Job job(options_of(1, 3, 12));
    begin_joined(job);
    job.checkpoint = row.checkpoint;
    for (const int node : {0, 1, 2})
      if (node != row.by) job.fail(node, 1, {.weight = 2, .rank = 2 * node, .message = "peer"});
    job.fail(row.by, 1, row.cause);
    CHECK(job.look() == "end");
    CHECK(job.look() == (row.refused ? "refuse cause" : "cause"));
    CHECK(job.last.restarts);
    CHECK(job.last.cause->exit_code == 1);
    if (row.refused) {
      CHECK(job.news.at(0).id == "id2");
      CHECK_THAT(job.lines, Contains("host 2 (h2) cannot join: no data here") &&
                                Contains("the job continues without it") &&
                                !Contains("restarting"));
    }
    CHECK(job.look() == "run");
    CHECK(job.members() == (row.refused ? "01" : "012"));
  }
}

TEST_CASE("a host that joins is refused when its rank dies a second time") {
  Job job(options_of(1, 3, 12));
  begin_joined(job);
  job.checkpoint = 40;
  for (int64_t round = 1; round < 3; ++round) {
    job.run({0, 1, 2}, round);
    CHECK(job.look() == "");
    for (const int node : {0, 1})
      job.fail(node, round, {.weight = 2, .rank = 2 * node, .message = "peer"});
    job.fail(2, round, {.weight = 0, .step = 41 + round, .rank = 4, .message = "was killed"});
    CHECK(job.look() == "end");
    CHECK(job.look() == (round == 1 ? "cause" : "refuse cause"));
    CHECK(job.look(2s) == "run");
    CHECK(job.members() == (round == 1 ? "012" : "01"));
  }
}

TEST_CASE("spare ranks replace a host with a slow rank at the next checkpoint") {
  Job job(options_of(1, 3, 4));
  begin_elastic(job, {0, 1, 2});
  REQUIRE(job.members() == "01");
  job.checkpoint = 20;
  job.host(0).straggler = 3;
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("rank 3 on host 1 (h1) is too slow: spare ranks replace"));
  CHECK(job.look(5s) == "");
  job.checkpoint = 30;
  CHECK(job.look() == "cause kill");
  job.end({0, 1}, 0);
  CHECK(job.look(200ms) == "run");
  CHECK(job.members() == "02");
  job.host(0).straggler.reset();
  job.run({0, 2}, 1);
  CHECK(job.look(5s) == "");  // the slow host does not join
  // It is better than none.
  job.disconnect(2);
  CHECK(job.look(1700ms) == "end");
  job.end({0}, 1);
  job.look(2s);
  CHECK(job.members() == "0");
}

TEST_CASE("a slow rank without spare ranks, or on the leader's host, is a warning") {
  for (const bool leads : {false, true}) {
    Job job(options_of(1, leads ? 3 : 2, 4));
    begin_elastic(job, leads ? std::vector{0, 1, 2} : std::vector{0, 1});
    job.host(0).straggler = leads ? 1 : 2;
    CHECK(job.look() == "cause");
    CHECK_THAT(job.lines, Contains("the job continues with it"));
    job.checkpoint = 30;
    CHECK(job.look(5s) == "");
  }
}

TEST_CASE("a host that is lost stays the cause when it comes back") {
  Job job(options_of(1, 2, 4));
  begin_elastic(job, {0, 1});
  job.disconnect(1);
  CHECK(job.look(1700ms) == "end");
  job.connect(1);
  job.fail(0, 0, {.weight = 2, .rank = 0, .message = "lost a peer", .text = "peer"});
  job.fail(1, 0, {.weight = 2, .rank = 2, .message = "lost a peer", .text = "peer"});
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("host 1 (h1) is gone") && !Contains("peer"));
}

TEST_CASE("a host without which the job cannot train is not refused") {
  Job job(options_of(2, 3, 12));
  begin_elastic(job, {0, 1});
  job.checkpoint = 20;
  job.disconnect(1);
  job.look(1700ms);
  job.end({0}, 0);
  job.look();
  job.host(1, "again");
  CHECK(job.look(200ms) == "run");
  job.host(1, "again").round = 1;
  job.host(1, "again").state = State::ended;
  job.host(1, "again").cause = RoundCause{.weight = 0, .rank = 2, .message = "was killed"};
  job.run({0}, 1);
  CHECK(job.look() == "end");
  job.end({0}, 1);
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("restarting all ranks (2 of 3"));
}

TEST_CASE("checkpoints that cannot be read now are neither new nor gone") {
  Job job(options_of(1, 3, 12));
  job.checkpoint = 20;
  begin_elastic(job, {0, 1});
  // Each restart counts, although the folder can be read at every second one.
  for (int64_t round = 0; round < 4; ++round) {
    job.checkpoint = round % 2 == 0 ? std::nullopt : std::optional<int64_t>(20);
    job.run({0, 1}, round);
    job.end({1}, round);
    job.fail(0, round, {.weight = 0, .step = 5, .rank = int(round), .message = "was killed"});
    CHECK(job.look() == "end");
    job.look(40s);
  }
  CHECK(job.last.kind == Kind::over);

  Job joins(options_of(1, 3, 12));
  joins.checkpoint = 20;
  begin_elastic(joins, {0, 1});
  joins.checkpoint.reset();
  joins.host(2);
  CHECK(joins.look(5s) == "");
  joins.checkpoint = 20;  // as before
  CHECK(joins.look() == "cause");
  joins.checkpoint.reset();
  CHECK(joins.look(5s) == "");
  joins.checkpoint = 40;
  CHECK(joins.look() == "cause kill");
}

}  // namespace launch_round_leader_test
