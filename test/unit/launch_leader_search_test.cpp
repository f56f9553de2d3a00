// Tests how a launcher finds the one that leads, or becomes it, with a stand-in for etcd that keeps
// keys and leases.
#include "launch/leader_search.h"

#include <httplib.h>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/json.h"
#include "launch/job_token.h"
#include "test/support/temporary_folder.h"

namespace launch_leader_search_test {

using namespace mtrain;
using namespace mtrain::launch;
using namespace std::chrono_literals;
using nlohmann::json;

// What EtcdElection needs of etcd. A lease loses time only if a test says so.
class StandInEtcd {
 public:
  StandInEtcd() {
    server_.Post("/v3/(.*)", [this](const httplib::Request& request, httplib::Response& response) {
      const std::lock_guard lock(mutex_);
      const json reply = answer(request.matches[1], parse_json(request.body, "request"));
      response.set_content(reply.dump(), "application/json");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~StandInEtcd() {
    server_.stop();
    thread_.join();
  }
  StandInEtcd(const StandInEtcd&) = delete;
  StandInEtcd& operator=(const StandInEtcd&) = delete;

  EtcdOptions options() const {
    EtcdOptions o;
    o.servers = {{"127.0.0.1", uint16_t(port_)}};
    o.own_address = "127.0.0.1";
    return o;
  }
  void put(const std::string& key, const std::string& value, int64_t lease = 0) {
    const std::lock_guard lock(mutex_);
    keys_[key] = {value, ++revision_, lease};
    if (lease) leases_[lease] = 9;
  }
  void remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    keys_.erase(key);
  }
  void age(int64_t lease, int64_t left) {
    const std::lock_guard lock(mutex_);
    leases_[lease] = left;
  }
  std::string value(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = keys_.find(key);
    return found == keys_.end() ? "" : found->second.value;
  }

 private:
  struct Entry {
    std::string value;
    int64_t created = 0, lease = 0;
  };
  static std::string text(const json& j) { return from_base64(j.get<std::string>()).value(); }
  static int64_t number(const json& j) { return std::stoll(j.get<std::string>()); }

  json answer(const std::string& path, const json& request) {
    if (path == "kv/range") {
      const auto found = keys_.find(text(request["key"]));
      if (found == keys_.end()) return json::object();
      return {{"kvs", json::array({{{"value", to_base64(found->second.value)},
                                    {"create_revision", std::to_string(found->second.created)},
                                    {"lease", std::to_string(found->second.lease)}}})}};
    }
    if (path == "kv/txn") {
      const json& guard = request["compare"][0];
      const auto found = keys_.find(text(guard["key"]));
      if ((found == keys_.end() ? 0 : found->second.created) != number(guard["create_revision"]))
        return json::object();
      const json& put = request["success"][0]["request_put"];
      Entry& entry = keys_[text(put["key"])];
      if (entry.created == 0) entry.created = ++revision_;
      entry.value = text(put["value"]);
      entry.lease = number(put["lease"]);
      return {{"succeeded", true}};
    }
    if (path == "lease/grant") {
      leases_[++last_lease_] = number(request["TTL"]) - 1;
      return {{"ID", std::to_string(last_lease_)}};
    }
    const int64_t lease = number(request["ID"]);
    const auto left = leases_.find(lease);
    const std::string ttl = left == leases_.end() ? "-1" : std::to_string(left->second);
    if (path == "lease/keepalive") return {{"result", {{"TTL", ttl}}}};
    if (path == "lease/timetolive") return {{"TTL", ttl}};
    leases_.erase(lease);  // lease/revoke
    std::erase_if(keys_, [&](const auto& key) { return key.second.lease == lease; });
    return json::object();
  }

  httplib::Server server_;
  int port_ = 0;
  std::mutex mutex_;
  std::map<std::string, Entry> keys_;
  std::map<int64_t, int64_t> leases_;  // the full seconds that are left
  int64_t revision_ = 0, last_lease_ = 100;
  std::thread thread_;
};

constexpr const char* kLeader = "/mtrain/job/leader";
constexpr const char* kRounds = "/mtrain/job/rounds";
constexpr int64_t kOthersLease = 7;

// The launcher of host 1 of a job of 1 to 3 hosts, at a time that the test sets.
class Searcher {
 public:
  explicit Searcher(const EtcdOptions& etcd) {
    options.etcd = etcd;
    options.ranks_per_node = 2;
    options.nodes = 3;
    options.min_nodes = 1;
    options.node = 1;
    options.run_id = "job";
    options.uses_store = true;
    options.shared_token = dir / "token";
    options.environment[kTokenVariable] = std::string(64, '7');
    options.run_folder_held = [this] { return folder_held; };
    store.emplace(options);
    job.emplace(JobState{.id = "id1",
                         .store = *store,
                         .signals = signals,
                         .watchdog = watchdog,
                         .console = console});
    search.emplace(options, *job, [this] { return now; });
  }

  // The record of host 0, which leads.
  LeaderRecord other(uint16_t port = 1) const {
    return {.id = "id0",
            .host = "h0",
            .node = 0,
            .address = "127.0.0.1",
            .port = port,
            .job_token = store->fingerprint()};
  }
  RoundFacts facts() const {
    return {.leader = "id0",
            .leader_host = "h0",
            .leader_node = 0,
            .leader_address = "127.0.0.1",
            .leader_port = 0,  // it cannot be reached by what is known of it
            .job_token = store->fingerprint(),
            .job = "job0",
            .round = 3,
            .members = {{0, "id0", 0, 2}, {1, "id1", 2, 2}}};
  }
  // Follows the leader that etcd names, and has a part in round 3.
  void join() {
    const auto found = search->look();
    REQUIRE(found);
    REQUIRE_FALSE(found->leads);
    search->answered();
    LauncherNews round{.round = 3, .members = facts().members, .restarts_left = 2};
    round.job = "job0";
    search->remember(round, true);
  }
  std::string look() {
    const auto found = search->look();
    if (!found) return "nothing";
    before = found->before;
    return found->leads ? "leads" : "follows";
  }

  TemporaryFolder dir;
  AgentOptions options;
  std::optional<JobStore> store;
  Signals signals;
  Watchdog watchdog{"leader-search-test"};
  Console console;
  std::optional<JobState> job;
  LeaderSearch::Clock::time_point now{};
  bool folder_held = false;
  std::optional<RoundFacts> before;
  std::optional<LeaderSearch> search;
};

TEST_CASE("a launcher that finds no leader leads") {
  StandInEtcd etcd;
  Searcher first(etcd.options());
  CHECK(first.look() == "leads");
  CHECK_FALSE(first.before);
  const auto record = parse_leader(etcd.value(kLeader));
  REQUIRE(record);
  CHECK(record->id == "id1");
  CHECK(record->port == first.store->port());
}

TEST_CASE("a leader whose process has ended is deposed once it does not renew its lease") {
  StandInEtcd etcd;
  Searcher host(etcd.options());
  etcd.put(kLeader, text_of(host.other()), kOthersLease);
  etcd.put(kRounds, text_of(host.facts()));
  host.join();
  host.search->lost();
  etcd.age(kOthersLease, 5);
  CHECK(host.look() == "nothing");  // it may be stopped, or cut off: its lease decides
  host.search->ended();
  etcd.age(kOthersLease, 8);  // another host can still reach it
  CHECK(host.look() == "nothing");
  CHECK(parse_leader(etcd.value(kLeader))->id == "id0");
  etcd.age(kOthersLease, 7);
  CHECK(host.look() == "leads");
  CHECK(parse_leader(etcd.value(kLeader))->id == "id1");
  REQUIRE(host.before);
  CHECK(host.before->leader == "id0");
  CHECK(host.before->round == 3);
}

TEST_CASE("another launcher that leads by now is not deposed") {
  StandInEtcd etcd;
  Searcher host(etcd.options());
  etcd.put(kLeader, text_of(host.other()), kOthersLease);
  host.join();
  host.search->lost();
  host.search->ended();
  LeaderRecord next = host.other();
  next.id = "id2";
  etcd.put(kLeader, text_of(next), kOthersLease + 1);
  etcd.age(kOthersLease + 1, 1);
  CHECK(host.look() == "follows");
  CHECK(host.search->leader().id == "id2");
  CHECK_FALSE(host.search->election().depose("id0"));
}

TEST_CASE("a leader that was lost is tried again after a while") {
  StandInEtcd etcd;
  Searcher host(etcd.options());
  etcd.put(kLeader, text_of(host.other()), kOthersLease);
  host.join();
  host.search->lost();
  host.now += 14s;
  CHECK(host.look() == "nothing");
  host.now += 2s;
  CHECK(host.look() == "follows");
}

TEST_CASE("a launcher continues the job from its own memory if etcd has lost the rounds") {
  StandInEtcd etcd;
  Searcher host(etcd.options());
  etcd.put(kLeader, text_of(host.other()), kOthersLease);
  host.join();
  host.search->lost();
  etcd.remove(kLeader);
  CHECK(host.look() == "leads");
  REQUIRE(host.before);
  CHECK(host.before->job == "job0");
  CHECK(host.before->round == 3);
  CHECK(host.before->leader == "id0");
  CHECK(host.before->members.size() == 2);
}

TEST_CASE(
    "a new launcher leads an old job once its hosts had time, and nobody uses the run folder") {
  StandInEtcd etcd;
  Searcher host(etcd.options());
  etcd.put(kRounds, text_of(host.facts()));
  host.folder_held = true;
  CHECK(host.look() == "nothing");
  host.now += 24s;
  CHECK(host.look() == "nothing");
  host.now += 2s;
  CHECK(host.look() == "nothing");
  host.folder_held = false;
  CHECK(host.look() == "leads");
  REQUIRE(host.before);
  CHECK(host.before->leader.empty());  // it has lost nothing
  CHECK(host.before->round == 3);
}

TEST_CASE("pauses of a search grow to two seconds, and differ") {
  std::set<std::chrono::milliseconds> seen;
  for (int looks = 0; looks < 100; ++looks) {
    const auto pause = search_pause(looks);
    const double full = std::min(2000.0, 300 * std::pow(1.2, looks));
    CHECK(double(pause.count()) >= 0.7 * full - 1);
    CHECK(double(pause.count()) <= full);
    seen.insert(pause);
  }
  CHECK(seen.size() > 50);
}

}  // namespace launch_leader_search_test
