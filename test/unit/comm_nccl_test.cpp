// Tests the NCCL backend with a stand-in for the library: how ranks meet, which calls are made in
// which order, and how calls that never end become errors. Tests of NCCL itself need GPUs.
#include "comm_nccl_testing.h"

namespace comm_nccl_test {

using namespace nccl_testing;

TEST_CASE("nccl: ranks meet by the first one's id, and part when all is done") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  StoreServer server({"127.0.0.1", 0, Token::random()});
  std::vector<Rank> ranks(2);
  for (auto& r : ranks) r.nccl->polls = 3;
  for (const auto& m : meet(ranks, 2, 10s, server)) REQUIRE(m.empty());
  CHECK(ranks[0].nccl->log() == Log{"make_id", "init the id 0/2"});
  CHECK(ranks[1].nccl->log() == Log{"init the id 1/2"});
  for (auto& r : ranks) r.group.reset();
  CHECK(ranks[1].nccl->log() == Log{"init the id 1/2", "finalize", "destroy"});
}

TEST_CASE("nccl: a group of messages, or of few numbers, takes few multiprocessors") {
  for (const auto& [traffic, blocks] : {std::pair{Traffic::messages, 4}, {Traffic::scalars, 1}}) {
    StoreServer server({"127.0.0.1", 0, Token::random()});
    std::vector<Rank> ranks(2);
    for (const auto& m : meet(ranks, 2, 10s, server, 0, traffic)) REQUIRE(m.empty());
    CHECK(ranks[1].nccl->log().back() == fmt::format("init the id 1/2 on {}", blocks));
  }
}

TEST_CASE("nccl: a rank that does not come is named, whichever it is") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  for (const int first : {0, 1}) {
    StoreServer server({"127.0.0.1", 0, Token::random()});
    std::vector<Rank> ranks(2);  // two of three ranks
    for (const auto& m : meet(ranks, 3, 300ms, server, first)) {
      CAPTURE(m);
      CHECK_THAT(m, Contains(fmt::format("rank {} of the group did not connect", first ? 0 : 2)));
      CHECK_THAT(m, Contains("group dp"));
    }
  }
}

TEST_CASE("nccl: a connection that fails or hangs is broken off") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  StoreServer server({"127.0.0.1", 0, Token::random()});
  std::vector<Rank> ranks(2);
  ranks[0].nccl->fails = true;
  ranks[1].nccl->never_ready = true;
  const auto messages = meet(ranks, 2, 300ms, server);
  CHECK_THAT(messages[0], Contains("a cable is out"));
  CHECK_THAT(messages[1], Contains("NCCL has not connected them after 0.3 s"));
  // A connection that blocks is aborted when NCCL returns.
  CHECK((ranks[1].nccl->inside == 1) == blocking);
  ranks[1].nccl->never_ready = false;
  for (auto& r : ranks) CHECK(eventually([&] { return r.nccl->log().back() == "abort"; }));
}

TEST_CASE("nccl: the calls of each collective") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3);
  Rank& r = g.ranks[1];
  const size_t before = r.nccl->log().size();
  const auto called = [&] {
    auto log = r.nccl->log();
    log.erase(log.begin(), log.begin() + long(before));
    return fmt::format("{}", fmt::join(log, "; "));
  };
  SECTION("all_to_all: one group of messages, those to oneself too, empty ones not") {
    r.group->all_to_all({{r.data(0, 6), {1, 2, 3}, r.data(20, 5), {4, 1, 0}}}, r.context);
    CHECK(called() ==
          "group_start; send 1 at 0 to 0; send 2 at 1 to 1; send 3 at 3 to 2; "
          "receive 4 at 20 from 0; receive 1 at 24 from 1; group_end");
  }
  SECTION("all_to_all of two tensors: one group of messages for both") {
    r.group->all_to_all({{r.data(0, 1), {0, 0, 1}, r.data(20, 1), {1, 0, 0}},
                         {r.data(1, 2), {0, 0, 2}, r.data(21, 2), {2, 0, 0}}},
                        r.context);
    CHECK(called() ==
          "group_start; send 1 at 0 to 2; receive 1 at 20 from 0; "
          "send 2 at 1 to 2; receive 2 at 21 from 0; group_end");
  }
  SECTION("exchange: the batch as one group, in its order") {
    r.group->exchange({{Transfer::Kind::receive, r.data(8, 2), 0},
                       {Transfer::Kind::send, r.data(0, 2), 2},
                       {Transfer::Kind::send, r.data(2, 1), 2}},
                      {}, r.context);
    CHECK(called() ==
          "group_start; receive 2 at 8 from 0; send 2 at 0 to 2; send 1 at 2 to 2; group_end");
  }
  SECTION("collectives") {
    r.group->all_reduce(r.data(0, 5), Reduce::average, r.context);
    r.group->reduce_scatter(r.data(0, 6), r.data(0, 2), Reduce::sum, r.context);
    r.group->all_gather(r.data(0, 2), r.data(0, 6), r.context);
    r.group->broadcast(r.data(0, 7), 2, r.context);
    r.group->barrier(r.context);
    CHECK(called() ==
          "all_reduce 5 fp32; reduce_scatter 2; all_gather 2; broadcast 7 from 2; all_reduce 1 "
          "int32");
  }
  SECTION("an average of integers is refused") {
    int32_t x[2] = {};
    CHECK_THROWS_AS(r.group->all_reduce({x, 2, DType::i32}, Reduce::average, r.context), BugError);
    CHECK(called().empty());
  }
}

TEST_CASE("nccl: a call waits until NCCL has taken it") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2);
  g.ranks[0].nccl->polls = 5;
  all_reduce(g.ranks[0]);
  CHECK(g.ranks[0].nccl->polls == 0);
}

TEST_CASE("nccl: a call that fails at once is thrown, and the group is of no use any more") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2);
  Rank& r = g.ranks[0];
  r.nccl->fails = true;
  CHECK_THROWS_WITH(all_reduce(r), Contains("a cable is out"));
  CHECK(r.nccl->log().back() == "abort");
  r.nccl->fails = false;
  const auto start = Clock::now();
  CHECK_THROWS_WITH(all_reduce(r), Contains("a cable is out"));
  CHECK(Clock::now() - start < 100ms);
}

TEST_CASE("nccl: a call that never ends fails its stream, and names the missing rank") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3, 500ms);
  for (auto& r : g.ranks) all_reduce(r);
  for (auto& r : g.ranks) r.nccl->ends = false;
  // The rank that is left out has enqueued it, but its stream hangs before it.
  g.ranks[1].nccl->reached = false;
  const auto start = Clock::now();
  for (auto& r : g.ranks) all_reduce(r, 7);
  for (const int i : {0, 2}) {
    const std::string m = g.ranks[size_t(i)].await_late();
    CHECK_THAT(m, Contains(fmt::format("call 2, all_reduce (sum) of 7 fp32, of group dp on rank {} "
                                       "({} of 3 in the group)",
                                       10 + i, i)));
    CHECK_THAT(m, Contains("rank 1 of the group did not arrive after 0.5 s"));
    CHECK(g.ranks[size_t(i)].nccl->log().back() == "abort");
  }
  CHECK(Clock::now() - start > 500ms);
  // Its stream arrives at last.
  g.ranks[1].nccl->reached = true;
  CHECK_THAT(g.ranks[1].await_late(), Contains("rank 1 of the group did not arrive"));
}

TEST_CASE("nccl: ranks that arrive one after the other are not taken for missing") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3, 1s);
  for (auto& r : g.ranks) r.nccl->ends = false;
  all_reduce(g.ranks[0]);
  std::this_thread::sleep_for(600ms);
  all_reduce(g.ranks[2]);
  for (const int i : {0, 2})
    CHECK_THAT(g.ranks[size_t(i)].await_late(), Contains("rank 1 of the group did not arrive"));
}

TEST_CASE("nccl: time spent before a call on its stream does not count") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 200ms);
  g.ranks[0].nccl->reached = g.ranks[0].nccl->ends = false;
  all_reduce(g.ranks[0]);
  std::this_thread::sleep_for(500ms);
  CHECK(g.ranks[0].late().empty());
  g.ranks[0].nccl->reached = g.ranks[0].nccl->ends = true;
  all_reduce(g.ranks[0]);
}

TEST_CASE("nccl: ranks at different calls get an error") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 300ms);
  for (auto& r : g.ranks) r.nccl->ends = false;
  all_reduce(g.ranks[0], 4);
  all_reduce(g.ranks[1], 5);
  CHECK_THAT(g.ranks[0].await_late() + g.ranks[1].await_late(),
             Contains("is at a different call: all_reduce"));
}

TEST_CASE("nccl: the calls of a graph are watched at its replays") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 300ms);
  std::vector<device::ReplayHooks> hooks(2);
  const auto replay = [&](int rank) {
    for (const auto& hook : hooks[size_t(rank)]) hook->before(g.ranks[size_t(rank)].context);
    for (const auto& hook : hooks[size_t(rank)]) hook->after(g.ranks[size_t(rank)].context);
  };
  for (const int i : {0, 1}) {
    Rank& r = g.ranks[size_t(i)];
    r.context.replays = &hooks[size_t(i)];
    all_reduce(r);
    r.group->all_gather(r.data(0, 1), r.data(0, 2), r.context);
    r.context.replays = nullptr;
    REQUIRE(hooks[size_t(i)].size() == 1);
    replay(i);
  }
  // The calls of the capture itself are not waited for: no event of theirs would pass.
  std::this_thread::sleep_for(500ms);
  for (auto& r : g.ranks) CHECK(r.late().empty());
  for (auto& r : g.ranks) r.nccl->ends = false;
  SECTION("a rank whose stream does not reach the replay is named") {
    g.ranks[1].nccl->reached = false;
    for (const int i : {0, 1}) replay(i);
    const std::string m = g.ranks[0].await_late();
    CHECK_THAT(m, Contains("call 3, a graph with 2 calls, the first of them all_reduce (sum) of 4 "
                           "fp32, of group dp on rank 10"));
    CHECK_THAT(m, Contains("rank 1 of the group did not arrive after 0.3 s"));
  }
  SECTION("calls after a replay have the numbers of its calls before them") {
    for (auto& r : g.ranks) all_reduce(r, 7);
    CHECK_THAT(g.ranks[0].await_late(), Contains("call 3, all_reduce (sum) of 7 fp32"));
  }
  SECTION("after a failure a graph is not replayed") {
    for (auto& r : g.ranks) all_reduce(r, 7);
    g.ranks[0].await_late();
    CHECK_THROWS_AS(replay(0), CommError);
  }
  hooks.clear();
}

TEST_CASE("nccl: an abort does not wait for graphs, which the same thread may destroy") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 300ms);
  Rank& r = g.ranks[0];
  device::ReplayHooks hooks;
  r.context.replays = &hooks;
  all_reduce(r);
  r.context.replays = nullptr;
  r.nccl->graphs = 1;
  SECTION("of the host") { r.group->abort("enough"); }
  SECTION("of the watchdog, which reports first") {
    r.nccl->ends = false;
    all_reduce(r);
    CHECK_THAT(r.await_late(), Contains("rank 1 of the group did not arrive"));
    CHECK(eventually([&] { return bool(r.nccl->aborted); }));
  }
  CHECK_FALSE(r.nccl->closed);
  hooks.clear();
  r.nccl->graphs = 0;
  r.group.reset();
  CHECK(r.nccl->closed);
}

TEST_CASE("nccl: messages that never end name their peers") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3, 300ms);
  Rank& r = g.ranks[0];
  r.nccl->ends = false;
  r.group->exchange({{Transfer::Kind::send, r.data(0, 1), 2}}, {}, r.context);
  CHECK_THAT(r.await_late(), Contains("messages with rank 2 did not end after 0.3 s"));
}

TEST_CASE("nccl: an abort reaches calls under way of other ranks, with its reason") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3);
  for (auto& r : g.ranks) r.nccl->ends = false;
  all_reduce(g.ranks[0]);
  all_reduce(g.ranks[1]);
  g.ranks[2].group->abort("the disk is full");
  for (const int i : {0, 1})
    CHECK_THAT(g.ranks[size_t(i)].await_late(),
               Contains("rank 2 of the group gave up: the disk is full"));
  CHECK_THROWS_WITH(all_reduce(g.ranks[2]), Contains("gave up: the disk is full"));
  for (auto& r : g.ranks) CHECK(r.nccl->log().back() == "abort");
}

TEST_CASE("nccl: an abort ends a host that waits for NCCL to take a call") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2);
  g.ranks[0].nccl->never_ready = true;
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    g.ranks[0].group->abort("enough");
  });
  CHECK_THROWS_WITH(all_reduce(g.ranks[0]), Contains("enough"));
  other.join();
}

TEST_CASE("nccl: a call that NCCL never takes is ended by the watchdog, and named") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(3, 400ms);
  for (auto& r : g.ranks) all_reduce(r);
  // The others wait inside NCCL for a rank that does not call.
  g.ranks[0].nccl->never_ready = g.ranks[2].nccl->never_ready = true;
  std::string messages[3];
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (const int i : {0, 2})
    threads.emplace_back([&, i] {
      try {
        all_reduce(g.ranks[size_t(i)], 7);
      } catch (const CommError& e) {
        messages[i] = e.message();
      }
    });
  for (auto& t : threads) t.join();
  CHECK(Clock::now() - start > 400ms);
  CHECK(Clock::now() - start < 5s);
  for (const int i : {0, 2}) {
    CHECK_THAT(messages[i], Contains("rank 1 of the group did not arrive after 0.4 s"));
    // The watchdog aborts NCCL just after the call has thrown.
    CHECK(eventually([&] { return bool(g.ranks[size_t(i)].nccl->aborted); }));
    CHECK_THAT(g.ranks[size_t(i)].late(), Contains("all_reduce (sum) of 7 fp32, of group dp"));
  }
}

TEST_CASE("nccl: a group whose end blocks is aborted after the time for it") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 300ms);
  g.ranks[0].nccl->never_ready = true;
  const auto nccl = g.ranks[0].nccl;
  g.ranks[0].group.reset();
  CHECK((nccl->log().back() == "abort" && nccl->aborted));
  CHECK(eventually([&] { return nccl->inside == 0; }));
}

TEST_CASE("nccl: an abort lets a call that is about to return do so") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2);
  g.ranks[0].nccl->never_ready = true;
  std::thread other([&] {
    while (blocking && g.ranks[0].nccl->inside == 0) std::this_thread::sleep_for(1ms);
    std::thread soon([&] {
      std::this_thread::sleep_for(30ms);
      g.ranks[0].nccl->never_ready = false;
    });
    g.ranks[0].group->abort("enough");
    soon.join();
  });
  CHECK_THROWS_WITH(all_reduce(g.ranks[0]), Contains("enough"));
  other.join();
  CHECK(g.ranks[0].nccl->log().back() == "abort");
  CHECK(g.ranks[0].nccl->inside == 0);
}

TEST_CASE("nccl: a captured call is not watched, since only its replays run") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2, 200ms);
  Rank& r = g.ranks[0];
  r.nccl->captures = true, r.nccl->ends = false;
  all_reduce(r);
  r.nccl->captures = false;
  std::this_thread::sleep_for(500ms);
  CHECK(r.late().empty());
  r.nccl->ends = true;
  all_reduce(r);
}

TEST_CASE("nccl: a failure of NCCL under way ends the group") {
  blocking = GENERATE(false, true);
  CAPTURE(blocking);
  FakeGroup g(2);
  for (auto& r : g.ranks) r.nccl->ends = false;
  for (auto& r : g.ranks) all_reduce(r);
  g.ranks[1].nccl->fails = true;
  CHECK_THAT(g.ranks[1].await_late(), Contains("a cable is out"));
  CHECK_THAT(g.ranks[0].await_late(),
             Contains("rank 1 of the group") && Contains("a cable is out"));
}

TEST_CASE("nccl: the description names the library") {
  CHECK_THAT(nccl_description(), Contains("NCCL"));
}

}  // namespace comm_nccl_test
