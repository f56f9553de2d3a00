// Tests which local copy a run continues from, and where replicas go.
#include <numeric>
#include <set>

#include <catch2/catch.hpp>

#include "run/local_choice.h"

namespace run_local_choice_test {

using namespace mtrain;
using namespace mtrain::run;

namespace {

const std::string kFirst(16, '1'), kSecond(16, '2');

// "36:0,1/2" is the parts of ranks 0 and 1 of 2, of step 36; a "+" at the end: of the second start.
std::vector<HostPart> parts_of(const std::vector<std::string>& texts) {
  std::vector<HostPart> parts;
  for (std::string text : texts) {
    const bool second = text.ends_with('+');
    if (second) text.pop_back();
    const size_t colon = text.find(':'), slash = text.find('/');
    for (size_t at = colon + 1; at < slash; at = text.find_first_of(",/", at) + 1)
      parts.push_back({.name = {.step = std::stoll(text),
                                .start = second ? kSecond : kFirst,
                                .rank = std::stoi(text.substr(at))},
                       .ranks = std::stoi(text.substr(slash + 1))});
  }
  return parts;
}

}  // namespace

TEST_CASE("the newest step of which all parts exist is chosen") {
  struct Row {
    std::string what;
    std::vector<std::vector<std::string>> hosts;
    int64_t after = 0;
    int64_t step = 0;  // 0: none
    std::vector<int> host_of = {};
    std::string start = kFirst;
  };
  for (const Row& row : std::vector<Row>{
           {.what = "nothing", .hosts = {{}, {}}},
           {.what = "one host", .hosts = {{"36:0,1/2"}}, .step = 36, .host_of = {0, 0}},
           {.what = "two steps",
           .hosts = {{"35:0,1/2", "36:0,1/2"}},
           .step = 36,
           .host_of = {0, 0}},
           {.what = "a rank had not written its last part",
           .hosts = {{"35:0,1/2", "36:1/2"}},
           .step = 35,
           .host_of = {0, 0}},
           {.what = "parts on two hosts",
           .hosts = {{"36:0/2"}, {"36:1/2"}},
           .step = 36,
           .host_of = {0, 1}},
           {.what = "a lost host without a replica", .hosts = {{"36:0/2"}, {}}},
           {.what = "a lost host with a replica",
           .hosts = {{"36:0,1/2"}, {}},
           .step = 36,
           .host_of = {0, 0}},
           {.what = "a lost first host",
           .hosts = {{}, {"36:0,1/2"}},
           .step = 36,
           .host_of = {1, 1}},
           {.what = "the last rank is missing", .hosts = {{"36:0,1/3"}}},
           {.what = "parts of two starts are not mixed",
           .hosts = {{"36:0/2"}, {"36:1/2+"}},
           .step = 0},
           {.what = "the later start of the same step",
           .hosts = {{"36:0,1/2", "36:0,1/2+"}},
           .step = 36,
           .host_of = {0, 0},
           .start = kSecond},
           {.what = "an older start has the newer step",
           .hosts = {{"36:0,1/2", "30:0,1/2+"}},
           .step = 36,
           .host_of = {0, 0}},
           {.what = "a shared checkpoint is as new", .hosts = {{"36:0,1/2"}}, .after = 36},
           {.what = "a shared checkpoint is older",
           .hosts = {{"36:0,1/2"}},
           .after = 35,
           .step = 36,
           .host_of = {0, 0}},
           {.what = "another number of ranks wrote the older step",
           .hosts = {{"35:0,1,2/3", "36:0/2"}},
           .step = 35,
           .host_of = {0, 0, 0}}}) {
    INFO(row.what);
    std::vector<std::vector<HostPart>> hosts;
    for (const auto& texts : row.hosts)
      hosts.push_back(parse_host_parts(host_parts_text(parts_of(texts))));
    const auto choice = newest_copy(hosts, row.after);
    REQUIRE(choice.has_value() == (row.step > 0));
    if (!choice) continue;
    CHECK(choice->id == CopyId(row.step, row.start));
    CHECK(choice->host_of == row.host_of);
    const auto before = newest_copy(hosts, row.after, {choice->id});
    CHECK((!before || before->id != choice->id));
  }
}

TEST_CASE("replicas go to the same place on the next hosts") {
  using To = std::vector<std::vector<int>>;
  CHECK(replica_ranks({"a"}, 2) == To{{}});
  CHECK(replica_ranks({"a", "a", "b", "b"}, 0) == To{{}, {}, {}, {}});
  CHECK(replica_ranks({"a", "a", "b", "b"}, 1) == To{{2}, {3}, {0}, {1}});
  CHECK(replica_ranks({"a", "b", "c"}, 2) == To{{1, 2}, {2, 0}, {0, 1}});
  CHECK(replica_ranks({"a", "b"}, 2) == To{{1}, {0}});
  CHECK(replica_ranks({"a", "a", "b"}, 1) == To{{2}, {2}, {0}});
  CHECK(replica_ranks({"a", "b", "a", "b"}, 1) == To{{1}, {0}, {3}, {2}});
}

TEST_CASE("each host gets parts from the host after it first, and from each host once") {
  using Order = std::vector<int>;
  CHECK(fetch_order({0, 0, 1, 1, 2, 2}, 0, 3) == Order{2, 3, 4, 5, 0, 1});
  CHECK(fetch_order({0, 0, 1, 1, 2, 2}, 2, 3) == Order{0, 1, 2, 3, 4, 5});
  CHECK(fetch_order({2, 0, 2, 0}, 1, 3) == Order{0, 2, 1, 3});
  CHECK(fetch_order({}, 0, 1).empty());
  // At each moment every host is asked by one other host.
  constexpr int kHosts = 100;
  std::vector<int> host_of(kHosts);
  std::iota(host_of.begin(), host_of.end(), 0);
  for (int turn = 0; turn + 1 < kHosts; ++turn) {
    std::set<int> asked;
    for (int host = 0; host < kHosts; ++host)
      asked.insert(fetch_order(host_of, host, kHosts)[size_t(turn)]);
    CHECK(asked.size() == kHosts);
  }
}

TEST_CASE("a list of parts that was changed has no parts that were not named") {
  CHECK(parse_host_parts("").empty());
  CHECK(parse_host_parts("step-00000036 2\nx\nstep-00000036.1.rank-00000 2\n").empty());
  CHECK(parse_host_parts("step-00000036." + kFirst + ".rank-00000 0\n").empty());
}

}  // namespace run_local_choice_test
