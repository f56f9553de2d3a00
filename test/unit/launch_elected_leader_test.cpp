// Tests the leader of a job whose launchers elect one: what it takes from the leader before it, and
// when its rounds may begin.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "base/base64.h"
#include "base/error.h"
#include "launch/round_leader.h"
#include "launch/torchrun_options.h"

namespace launch_elected_leader_test {

using namespace mtrain::launch;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Kind = LauncherNews::Kind;

RoundFacts facts_of_round(int64_t round) {
  return {.leader = "id0",
          .leader_host = "h0",
          .leader_node = 0,
          .round = round,
          .members = {{0, "id0", 0, 2}, {1, "id1", 2, 2}, {2, "id2", 4, 2}},
          .counted_from = 20,
          .began_with = 20,
          .restarts = 1};
}

// The launchers of hosts 1 and 2, of which host 1 leads.
class Elected {
 public:
  explicit Elected(std::optional<RoundFacts> before, int hosts = 3) {
    LeaderOptions o{.min_nodes = 1, .max_nodes = hosts, .max_restarts = 3};
    o.largest_world = [](int ranks) { return ranks; };
    o.layout = [](int world) { return fmt::format("dp_size {}", world); };
    o.nearest_worlds = [](int) { return std::string("nearest"); };
    o.newest_checkpoint = [this] { return std::optional(checkpoint); };
    o.timeout = 60s;
    o.leader = 1;
    o.leads = [this] { return leads; };
    o.settle = [this](const RoundFacts& facts) {
      if (settles) settled = facts;
      return settles;
    };
    o.settle_fault = [] { return std::string("etcd does not answer"); };
    o.folder_held = [this] { return folder_held; };
    o.job = "job1";
    leader.emplace(before ? RoundLeader(o, *before) : RoundLeader(o));
  }
  void add(int node, const std::string& id) {
    seen[id].note = {.id = id, .host = fmt::format("h{}", node), .node = node, .ranks = 2};
  }
  std::string look(std::chrono::milliseconds time = 100ms) {
    constexpr const char* kWords[] = {"run", "end", "kill", "signal", "cause", "over", "refuse"};
    std::string words;
    lines.clear();
    for (const auto until = now + time; now < until;) {
      now += 100ms;
      for (auto& [key, s] : seen) ++s.note.beat;
      for (const LauncherNews& n : leader->look(seen, now)) {
        words += (words.empty() ? "" : " ") + std::string(kWords[size_t(n.kind)]);
        for (const std::string& line : n.lines) lines += line + "\n";
        last = n;
      }
    }
    return words;
  }

  int64_t checkpoint = 20;
  bool leads = true, settles = true, folder_held = false;
  std::optional<RoundFacts> settled;
  std::map<std::string, SeenLauncher> seen;
  std::optional<RoundLeader> leader;
  LauncherNews last;
  std::string lines;
  RoundLeader::Clock::time_point now{};
};

TEST_CASE("a new leader reports the loss of the one before, and waits for its hosts") {
  Elected job(facts_of_round(4));
  job.add(1, "id1");
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("host 0 (h0) is gone") && Contains("(2 of 3"));
  CHECK(job.last.cause->weight == 0);
  CHECK(job.look(3s) == "");  // host 2 has not noticed yet
  job.add(2, "id2");
  CHECK(job.look(200ms) == "run");
  CHECK(job.last.round == 5);
  CHECK(job.last.world == 4);
  CHECK(job.last.members.at(0).node == 1);  // rank 0 is on the leader's host
  CHECK(job.last.members.at(0).first_rank == 0);
  REQUIRE(job.settled);
  CHECK(job.settled->round == 5);
  CHECK(job.settled->restarts == 2);
  CHECK(job.settled->members.size() == 2);
}

TEST_CASE("the job keeps the id that its first leader has made") {
  Elected first({}, 2);
  first.add(0, "id0"), first.add(1, "id1");
  CHECK(first.look() == "run");
  CHECK(first.last.job == "job1");
  REQUIRE(first.settled);
  CHECK(first.settled->job == "job1");
  RoundFacts facts = facts_of_round(4);
  facts.job = "job0";
  for (const bool was_in_job : {true, false}) {
    RoundFacts before = facts;
    if (!was_in_job) before.leader.clear();
    Elected next(before, 2);
    next.add(1, "id1"), next.add(2, "id2");
    CHECK_THAT(next.look(200ms), Contains("run"));
    CHECK(next.last.job == "job0");
    CHECK(next.last.counted_from == 20);
    REQUIRE(next.settled);
    CHECK(next.settled->job == "job0");
  }
}

TEST_CASE("a new leader waits for ranks that still use the run folder") {
  Elected job(facts_of_round(4), 2);
  job.folder_held = true;
  job.add(1, "id1"), job.add(2, "id2");
  CHECK(job.look(20s) == "cause cause");
  CHECK_FALSE(job.settled);
  job.folder_held = false;
  CHECK(job.look(200ms) == "run");
  CHECK(job.last.world == 4);
  job.folder_held = true;  // by the ranks of this round
  job.seen["id2"].note.round = 5;
  job.seen["id2"].note.state = LauncherNote::State::failed;
  CHECK(job.look() == "end");

  Elected late(facts_of_round(4), 2);
  late.folder_held = true;
  late.add(1, "id1"), late.add(2, "id2");
  CHECK(late.look(59s) == "cause cause");
  CHECK(late.look(3s) == "run");

  Elected first({}, 2);  // its ranks say who uses the folder
  first.folder_held = true;
  first.add(0, "id0"), first.add(1, "id1");
  CHECK(first.look(200ms) == "run");
}

TEST_CASE("a new leader does not wait forever for the hosts of the one before") {
  Elected job(facts_of_round(4));
  job.add(1, "id1");
  CHECK(job.look(9s) == "cause");
  CHECK(job.look(2s) == "run");
  CHECK(job.last.world == 2);
}

TEST_CASE("restarts are counted over all leaders, and a new checkpoint begins the count again") {
  RoundFacts facts = facts_of_round(4);
  facts.restarts = 3;
  Elected spent(facts);
  spent.add(1, "id1");
  CHECK(spent.look() == "cause over");
  CHECK(spent.last.code == 1);
  Elected saved(facts);
  saved.checkpoint = 30;
  saved.add(1, "id1");
  CHECK(saved.look() == "cause");
  CHECK_THAT(saved.lines, Contains("(1 of 3"));
}

TEST_CASE("a leader that has not been in the job before loses nothing") {
  RoundFacts facts = facts_of_round(4);
  facts.leader.clear();
  Elected job(facts);
  job.add(1, "id1");
  CHECK(job.look(4s) == "");  // others may come
  CHECK(job.look(2s) == "run");
  CHECK(job.last.round == 5);
}

TEST_CASE("a round begins only once it is recorded") {
  Elected job({}, 2);
  job.settles = false;
  job.add(0, "id0"), job.add(1, "id1");
  CHECK(job.look() == "cause");
  CHECK_THAT(job.lines, Contains("the next start waits: etcd does not answer"));
  CHECK(job.look(30s) == "");
  job.settles = true;
  CHECK(job.look(200ms) == "run");

  Elected late({}, 2);
  late.settles = false;
  late.add(0, "id0"), late.add(1, "id1");
  CHECK(late.look(59s) == "cause");
  CHECK(late.look(3s) == "over");
  CHECK(late.last.code == 1);
  CHECK_THAT(late.lines, Contains("after 60 s: etcd does not answer"));
}

TEST_CASE("a leader that another one has replaced kills its round") {
  Elected job({}, 2);
  job.add(0, "id0"), job.add(1, "id1");
  CHECK(job.look() == "run");
  job.leads = false;
  CHECK(job.look() == "kill");
  CHECK(job.last.round == 0);
  CHECK(job.leader->is_over());
  CHECK(job.look(5s) == "");
}

TEST_CASE("what etcd holds is read as it was written, and other texts are refused") {
  RoundFacts facts = facts_of_round(7);
  facts.proven = {"id1"};
  facts.job = "job0";
  facts.leader_address = "10.0.0.1";
  facts.leader_port = 65535;
  facts.job_token = "ab";
  const auto read = parse_facts(text_of(facts));
  REQUIRE(read);
  CHECK(read->round == 7);
  CHECK(read->members.at(2).first_rank == 4);
  CHECK(read->began_with == 20);
  CHECK(read->proven == facts.proven);
  CHECK(read->job == "job0");
  CHECK(read->leader_address == "10.0.0.1");
  CHECK(read->leader_port == 65535);
  CHECK(read->job_token == "ab");
  facts.began_with.reset();
  CHECK_FALSE(parse_facts(text_of(facts))->began_with);
  const LeaderRecord leader{
      .id = "x", .host = "h", .node = 3, .address = "::1", .port = 65535, .job_token = "ab"};
  const auto found = parse_leader(text_of(leader));
  REQUIRE(found);
  CHECK(found->port == 65535);
  CHECK(found->node == 3);
  for (const std::string text : {"", "{}", "[]", "null", "{\"id\":1}", "{\"leader\":\"x\"}"}) {
    CHECK_FALSE(parse_facts(text));
    CHECK_FALSE(parse_leader(text));
  }
  std::string damaged = text_of(leader);
  damaged.replace(damaged.find("65535"), 5, "65536");
  CHECK_FALSE(parse_leader(damaged));
}

TEST_CASE("base64 has padding, and nothing else is read") {
  const std::pair<std::string, std::string> rows[] = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"\xff\xfe\xfd\x80", "//79gA=="}};
  for (const auto& [bytes, text] : rows) {
    CHECK(mtrain::to_base64(bytes) == text);
    CHECK(mtrain::from_base64(text) == bytes);
  }
  for (const std::string text : {"Zg", "Zg=", "Zg=a", "=Zg=", "Zh==", "Zm9v=", "Z===", "Zg==Zg=="})
    CHECK_FALSE(mtrain::from_base64(text));
}

TEST_CASE("etcd's servers and secrets are read as torchrun spells them") {
  const EtcdOptions plain = parse_etcd("a:1,b, [::1]:3", {});
  REQUIRE(plain.servers.size() == 3);
  CHECK(plain.servers[0].port == 1);
  CHECK(plain.servers[1].host == "b");
  CHECK(plain.servers[1].port == 2379);
  CHECK(plain.servers[2].host == "::1");
  CHECK_FALSE(plain.tls);
  CHECK(parse_etcd("https://a:1/,b", {}).tls);
  CHECK(parse_etcd("a", parse_rendezvous_config("protocol=https")).tls);
  const EtcdOptions secured = parse_etcd("a", parse_rendezvous_config("ca_cert=/dev/null"));
  CHECK(secured.tls);
  CHECK(secured.ca_file == "/dev/null");
  const auto refuses = [](const std::string& endpoint, const std::string& config,
                          const std::string& gist) {
    CHECK_THROWS_WITH(parse_etcd(endpoint, parse_rendezvous_config(config)), Contains(gist));
  };
  refuses("", "", "names no host");
  refuses("a:x", "", "port");
  refuses("https://a,http://b", "", "cannot be mixed");
  refuses("a", "protocol=ftp", "ftp");
  refuses("a", "protocol=http,cacert=/dev/null", "https");
  refuses("a", "cert=/dev/null", "belong together");
  refuses("a", "cacert=/no/such/file", "cannot be read");
  refuses("a", "user=me", "password_file");
  refuses("a", "user=me,password_file=/no/such/file", "does not exist");
  refuses("a", "user=me,password=x", "can be read by every user");
}

}  // namespace launch_elected_leader_test
