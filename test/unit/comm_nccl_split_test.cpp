// Tests groups that NCCL splits from one communicator, and memory that it registers, with a
// stand-in for the library.
#include <algorithm>

#include "comm_nccl_testing.h"

namespace comm_nccl_split_test {

using namespace nccl_testing;

namespace {

// The splits of four ranks, as one of them sees them: data parallelism in two replicas, and the
// channels of two pipelines, each of which only two ranks have.
std::vector<mesh::GroupSplit> splits_of(int rank) {
  const std::vector<int> all{0, 1, 2, 3}, none{},
      shard = rank < 2 ? std::vector{0, 1} : std::vector{2, 3},
      replicas = rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3},
      channel = rank == 0 || rank == 3 ? std::vector{0, 3} : none;
  return {{"world", GroupTraffic::scalars, all},
          {"dp_cp", GroupTraffic::bulk, all},
          {"dp_shard_cp", GroupTraffic::bulk, shard, 1},
          {"dp_replicate", GroupTraffic::bulk, replicas, 1},
          {channel.empty() ? "" : "pp 0>1", GroupTraffic::messages, channel}};
}

struct Splitting {
  std::vector<std::string> errors = std::vector<std::string>(4);
  std::vector<std::vector<std::shared_ptr<Communicator>>> ends{4};
  std::vector<Rank> ranks{4};
  StoreServer server{{"127.0.0.1", 0, Token::random()}};

  void run(std::chrono::nanoseconds timeout = 10s, bool can_split = true) {
    std::vector<std::thread> threads;
    for (int r = 0; r < 4; ++r)
      threads.emplace_back([&, r] {
        Rank& rank = ranks[size_t(r)];
        rank.nccl->splits = can_split;
        try {
          ends[size_t(r)] =
              nccl_transport(rank.nccl, {server.address(), timeout, r})->connect_all(splits_of(r));
        } catch (const CommError& e) {
          errors[size_t(r)] = e.message();
        }
      });
    for (auto& t : threads) t.join();
  }
  std::vector<std::string> log(int rank) { return ranks[size_t(rank)].nccl->log(); }
  bool has(int rank, const std::string& what) {
    const auto all = log(rank);
    return std::ranges::find(all, what) != all.end();
  }
};

}  // namespace

TEST_CASE("nccl: all groups are split from the communicator of all ranks, in one order") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  Splitting s;
  for (auto& r : s.ranks) r.nccl->polls = 3;
  s.run();
  for (const auto& e : s.errors) CHECK(e.empty());
  // Only groups of one stream share. The communicator that is split from has to say so itself.
  CHECK(s.log(0) == Log{"make_id", "init the id 0/4 on 1", "split 0 color 0 0 shares",
                        "split 1 color 0 0", "split 1 color 0 0", "split 0 color 0 0 on 4"});
  CHECK(s.log(3) == Log{"init the id 3/4 on 1", "split 0 color 0 3 shares", "split 1 color 2 1",
                        "split 1 color 1 1", "split 0 color 0 1 on 4"});
  CHECK(s.log(2).back() == "split 0 without color 0 on 4");
  for (int r = 0; r < 4; ++r) {
    REQUIRE(s.ends[size_t(r)].size() == 5);
    for (size_t i = 0; i < 4; ++i) CHECK(s.ends[size_t(r)][i]);
    CHECK(bool(s.ends[size_t(r)][4]) == (r == 0 || r == 3));
  }
  s.ends[1][2]->all_reduce(s.ranks[1].data(0, 4), Reduce::sum, s.ranks[1].context);
  CHECK(s.log(1).back() == "all_reduce 4 fp32");
}

TEST_CASE("nccl: a library that cannot split connects each group by an id, at its first use") {
  Splitting s;
  s.run(10s, false);
  for (int r = 0; r < 4; ++r) {
    CHECK(s.errors[size_t(r)].empty());
    CHECK(s.ends[size_t(r)].empty());
    CHECK(s.log(r).empty());
  }
}

TEST_CASE("nccl: a split that fails is named on every rank, with the rank") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  Splitting s;
  s.ranks[2].nccl->fails_at = 2;
  for (const int r : {0, 1, 3}) s.ranks[size_t(r)].nccl->stuck_at = 2;
  s.run();
  for (int r = 0; r < 4; ++r) {
    CAPTURE(r);
    CHECK_THAT(s.errors[size_t(r)], Contains("group dp_shard_cp") && Contains("2 of 4 splits") &&
                                        Contains("a cable is out"));
    if (r != 2) CHECK_THAT(s.errors[size_t(r)], Contains("rank 2 of the group"));
    CHECK(s.has(r, "abort 0"));
    for (const char* none : {"destroy 0", "destroy 1"}) CHECK_FALSE(s.has(r, none));
    // NCCL still uses the communicator that a blocked thread splits.
    CHECK(s.has(r, "abort 1") == (r == 2 || !blocking));
    s.ranks[size_t(r)].nccl->never_ready = false;
  }
  for (auto& r : s.ranks) CHECK(eventually([&] { return r.nccl->inside == 0; }));
}

TEST_CASE("nccl: a rank that does not come to a split is named") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  Splitting s;
  s.ranks[3].nccl->never_ready = true;  // it does not get through its first call
  for (const int r : {0, 1, 2}) s.ranks[size_t(r)].nccl->stuck_at = 1;
  s.run(400ms);
  for (const int r : {0, 1, 2})
    CHECK_THAT(s.errors[size_t(r)], Contains("group dp_cp") &&
                                        Contains("rank 3 of the group did not arrive after 0.4 s"));
  CHECK_THAT(s.errors[3], Contains("NCCL has not connected them"));
  for (auto& r : s.ranks) r.nccl->never_ready = false;
  for (auto& r : s.ranks) CHECK(eventually([&] { return r.nccl->inside == 0; }));
}

TEST_CASE("nccl: groups that share resources end before the one that owns them") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  Splitting s;
  s.run();
  auto ends = std::move(s.ends[0]);
  const size_t before = s.log(0).size();
  ends[1].reset();  // the owner is still in use
  CHECK(s.log(0).size() == before);
  ends[2].reset();
  ends[3].reset();
  auto log = s.log(0);
  log.erase(log.begin(), log.begin() + long(before));
  CHECK(log ==
        Log{"finalize 2", "destroy 2", "finalize 3", "destroy 3", "finalize 1", "destroy 1"});
}

TEST_CASE("nccl: an abort of a group that shares resources ends the others of its family") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  Splitting s;
  s.run();
  Rank& r = s.ranks[0];
  r.nccl->ends = false;
  s.ends[0][2]->all_reduce(r.data(0, 4), Reduce::sum, r.context);
  s.ends[0][3]->abort("the disk is full");
  r.nccl->ends = true;  // as NCCL's kernels end when they see the abort
  CHECK_THAT(r.await_late(), Contains("the disk is full"));
  CHECK(eventually([&] { return s.has(0, "abort 2"); }));
  s.ends[0].clear();
  CHECK(s.has(0, "abort 1"));
  // The others do not belong to it.
  CHECK(s.has(0, "destroy 0"));
  CHECK(s.has(0, "destroy 4"));
}

TEST_CASE("nccl: memory is registered before its use, and until its group ends") {
  blocking = GENERATE(false, true);
  const bool buffer_first = GENERATE(false, true);
  CAPTURE(blocking, buffer_first);
  FakeGroup g(2);
  Rank& r = g.ranks[0];
  r.nccl->windows = true;
  r.nccl->polls = 3;
  auto memory = r.group->register_memory(4096, true);
  REQUIRE(memory);
  auto other = r.group->register_memory(512, false);
  r.group->all_gather(r.data(0, 2), r.data(0, 4), r.context);
  const auto nccl = r.nccl;
  const auto end_buffers = [&] { memory.reset(), other.reset(); };
  if (buffer_first) end_buffers();
  r.group.reset();
  end_buffers();
  auto log = nccl->log();
  log.erase(log.begin(), std::ranges::find(log, "allocate 4096"));
  CHECK(log == Log{"allocate 4096", "register 4096 symmetric", "allocate 512", "register 512",
                   "all_gather 2", "deregister", "deregister", "finalize", "destroy", "free",
                   "free"});
}

TEST_CASE("nccl: an older library registers no memory") {
  FakeGroup g(2);
  const size_t before = g.ranks[0].nccl->log().size();
  CHECK_FALSE(g.ranks[0].group->register_memory(4096, true));
  CHECK(g.ranks[0].nccl->log().size() == before);
}

TEST_CASE("nccl: a registration that fails or hangs ends its group, and is named") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 300ms);
  Rank& r = g.ranks[0];
  r.nccl->windows = true;
  SECTION("fails") {
    r.nccl->fails = true;
    CHECK_THROWS_WITH(r.group->register_memory(4096, true), Contains("a cable is out"));
  }
  SECTION("hangs") {
    r.nccl->never_ready = true;
    CHECK_THROWS_WITH(r.group->register_memory(4096, true),
                      Contains("rank 1 of the group did not arrive after 0.3 s"));
  }
  const auto nccl = r.nccl;
  CHECK(eventually([&] { return bool(nccl->aborted); }));
  r.group.reset();
  const auto log = nccl->log();
  CHECK(std::ranges::find(log, "deregister") == log.end());
  CHECK(eventually([&] { return nccl->inside == 0; }));
}

TEST_CASE("nccl: a group of gathers into registered memory asks for copy engines") {
  StoreServer server({"127.0.0.1", 0, Token::random()});
  std::vector<Rank> ranks(2);
  for (const auto& m : meet(ranks, 2, 10s, server, 0, Traffic::copies)) REQUIRE(m.empty());
  CHECK(ranks[1].nccl->log().back() == "init the id 1/2 by copy engines");
}

}  // namespace comm_nccl_split_test
