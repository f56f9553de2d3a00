// Tests the contract of every backend of communication: results equal closed forms, exactly in
// every dtype; calls keep their order; and a failure unblocks the peers.
#include <atomic>
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "test/support/comm_testing.h"

namespace comm_group_contract_test {

using namespace mtrain;
using namespace mtrain::comm;

namespace {

// The ranks use this function, since the macros of Catch are not safe in several threads.
void require(bool ok, const std::string& what) {
  if (!ok) throw BugError(what);
}
void require_values(const TestRank& r, const Tensor& t,
                    const std::function<double(int64_t)>& expected, const char* what) {
  const auto got = r.values(t);
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = expected(int64_t(i));
    if (got[i] != want)
      throw BugError(fmt::format("{} on rank {}: element {} is {}, expected {}", what, r.rank(), i,
                                 got[i], want));
  }
}

// Returns small integers that depend on rank and index, and whose sums over 8 ranks bf16 holds
// exactly.
double value(int rank, int64_t i) { return double((i * 3 + rank) % 13); }

// No element, one, an odd number, and more than a slot or a piece can hold.
const std::vector<int64_t> kCounts{0, 1, 1001, (1 << 18) + 3};

void on_all(const std::function<void(TestRank&)>& body, std::vector<int> sizes = {2, 3, 4}) {
  for (const auto& backend : comm_backends())
    for (const int ranks : sizes) {
      CAPTURE(backend, ranks);
      CHECK_NOTHROW(run_ranks(ranks, backend, body));
    }
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16,
                            DType::i32, DType::i64,  DType::f64};

}  // namespace

TEST_CASE("backends without registered memory say so") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    require(!g.registered(r.stream, {64}, DType::f32, device::MemoryCategory::buffers, true),
            "memory is registered");
    g.barrier(r.stream);
  });
}

TEST_CASE("all_reduce sums, averages and takes maxima over ranks") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    for (const DType dtype : kTypes)
      for (const int64_t count : {int64_t(1), int64_t(1001)}) {
        const auto all = [&](int64_t i, auto fold) {
          double x = value(0, i);
          for (int rank = 1; rank < r.size(); ++rank) x = fold(x, value(rank, i));
          return x;
        };
        const auto mine = [&](int64_t i) { return value(r.rank(), i); };
        Tensor t = r.filled(count, dtype, mine);
        g.all_reduce(t, Reduce::sum, r.stream);
        require_values(
            r, t, [&](int64_t i) { return all(i, [](double a, double b) { return a + b; }); },
            "sum");
        t = r.filled(count, dtype, mine);
        g.all_reduce(t, Reduce::max, r.stream);
        require_values(
            r, t,
            [&](int64_t i) { return all(i, [](double a, double b) { return std::max(a, b); }); },
            "max");
      }
    const Tensor t = r.filled(100, DType::f32, [&](int64_t) { return r.rank() + 1; });
    g.all_reduce(t, Reduce::average, r.stream);
    require_values(
        r, t, [&](int64_t) { return double(float(r.size() + 1) / 2); }, "average");
  });
}

TEST_CASE("collectives of every size") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    const int n = r.size(), me = r.rank();
    double ranks = 0;
    for (int k = 0; k < n; ++k) ranks += k;
    for (const int64_t count : kCounts) {
      const Tensor sum =
          r.filled(count, DType::f32, [&](int64_t i) { return double(i % 1000) + me; });
      g.all_reduce(sum, Reduce::sum, r.stream);
      require_values(
          r, sum, [&](int64_t i) { return double(n) * double(i % 1000) + ranks; }, "all_reduce");

      const Tensor part = r.filled(count, DType::f32, [&](int64_t i) { return value(me, i); });
      const Tensor whole = Tensor::empty(r.stream, {count * n}, DType::f32);
      g.all_gather(part, whole, r.stream);
      require_values(
          r, whole, [&](int64_t i) { return value(int(i / count), i % count); }, "all_gather");
      // In place.
      const Tensor own = r.filled(count * n, DType::f32, [&](int64_t i) {
        return i / std::max<int64_t>(1, count) == me ? value(me, i % count) : -1;
      });
      g.all_gather(own.rows(me * count, (me + 1) * count), own, r.stream);
      require_values(
          r, own, [&](int64_t i) { return value(int(i / count), i % count); }, "in place");

      const Tensor all =
          r.filled(count * n, DType::f32, [&](int64_t i) { return double(i % 500) + me; });
      g.reduce_scatter(all, part, Reduce::sum, r.stream);
      require_values(
          r, part, [&](int64_t i) { return double(n) * double((me * count + i) % 500) + ranks; },
          "reduce_scatter");

      // In place.
      const Tensor mine = all.rows(me * count, (me + 1) * count);
      g.reduce_scatter(all, mine, Reduce::sum, r.stream);
      require_values(
          r, mine, [&](int64_t i) { return double(n) * double((me * count + i) % 500) + ranks; },
          "reduce_scatter in place");

      // Element i of part p is 1000 p + 100 sender + i.
      const Tensor send = r.filled(count * n, DType::i32, [&](int64_t i) {
        return double(1000 * (i / count) + 100 * me + i % count);
      });
      const Tensor received = Tensor::empty(r.stream, {count * n}, DType::i32);
      g.all_to_all(send, received, r.stream);
      require_values(
          r, received, [&](int64_t i) { return double(1000 * me + 100 * (i / count) + i % count); },
          "all_to_all");

      for (int root = 0; root < n; root += 2) {
        const Tensor data =
            r.filled(count, DType::i64, [&](int64_t i) { return me == root ? double(i) : -1; });
        g.broadcast(data, root, r.stream);
        require_values(
            r, data, [](int64_t i) { return double(i); }, "broadcast");
      }
      g.barrier(r.stream);
    }
  });
}

TEST_CASE("large reductions of every type") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    const int n = r.size(), me = r.rank();
    const int64_t count = 50001;  // leaves uneven shards
    for (const DType dtype : kTypes) {
      const auto mine = [&](int64_t i) { return value(me, i); };
      const auto fold = [&](int64_t i, auto f) {
        double x = value(0, i);
        for (int rank = 1; rank < n; ++rank) x = f(x, value(rank, i));
        return x;
      };
      const auto sum = [&](int64_t i) { return fold(i, [](double a, double b) { return a + b; }); };
      Tensor t = r.filled(count, dtype, mine);
      g.all_reduce(t, Reduce::sum, r.stream);
      require_values(r, t, sum, "sum");
      t = r.filled(count, dtype, mine);
      g.all_reduce(t, Reduce::max, r.stream);
      require_values(
          r, t,
          [&](int64_t i) { return fold(i, [](double a, double b) { return std::max(a, b); }); },
          "max");
      const Tensor in = r.filled(count * n, dtype, mine),
                   out = Tensor::empty(r.stream, {count}, dtype);
      g.reduce_scatter(in, out, Reduce::sum, r.stream);
      require_values(
          r, out, [&](int64_t i) { return sum(me * count + i); }, "reduce_scatter");
    }
    const Tensor t = r.filled(count, DType::f32, [&](int64_t) { return n * (me + 1); });
    g.all_reduce(t, Reduce::average, r.stream);
    require_values(
        r, t, [&](int64_t) { return n * (n + 1) / 2; }, "average");
  });
}

TEST_CASE("all_to_all with parts of different sizes, some of them empty") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    const auto n = size_t(r.size()), me = size_t(r.rank());
    const auto count = [](size_t from, size_t to) {
      return int64_t((from * 7 + to * 3) % 5) * int64_t(from == 1 ? 90000 : 11);
    };
    std::vector<int64_t> sends, receives;
    for (size_t p = 0; p < n; ++p) {
      sends.push_back(count(me, p));
      receives.push_back(count(p, me));
    }
    std::vector<double> out, expected;
    for (size_t p = 0; p < n; ++p) {
      for (int64_t i = 0; i < sends[p]; ++i)
        out.push_back(double((100 * me + 10 * p + size_t(i)) % 251));
      for (int64_t i = 0; i < receives[p]; ++i)
        expected.push_back(double((100 * p + 10 * me + size_t(i)) % 251));
    }
    const Tensor in =
        r.filled(int64_t(out.size()), DType::bf16, [&](int64_t i) { return out[size_t(i)]; });
    const Tensor got = Tensor::empty(r.stream, {int64_t(expected.size())}, DType::bf16);
    g.all_to_all(in, sends, got, receives, r.stream);
    require_values(
        r, got, [&](int64_t i) { return expected[size_t(i)]; }, "all_to_all");
    // The same beside a tensor of another type, which each rank sends to the next rank alone.
    const size_t next = (me + 1) % n, before = (me + n - 1) % n;
    std::vector<int64_t> sends_one(n), receives_one(n);
    sends_one[next] = receives_one[before] = 70'000;
    const Tensor again = Tensor::empty(r.stream, got.shape(), DType::bf16),
                 number = r.filled(70'000, DType::f32, [&](int64_t i) { return value(me, i); }),
                 theirs = Tensor::empty(r.stream, {70'000}, DType::f32);
    g.all_to_all({{in, sends, again, receives}, {number, sends_one, theirs, receives_one}},
                 r.stream);
    require_values(
        r, again, [&](int64_t i) { return expected[size_t(i)]; }, "all_to_all of two");
    require_values(
        r, theirs, [&](int64_t i) { return value(before, i); }, "all_to_all of two");
  });
}

TEST_CASE("messages: a ring both ways at once, and many sizes in a row") {
  on_all([](TestRank& r) {
    const Group g = r.world.world_group();
    const int n = r.size(), next = (r.rank() + 1) % n, before = (r.rank() + n - 1) % n;
    using Kind = Transfer::Kind;
    for (const int64_t count : kCounts) {
      const auto mine = [&](int64_t i) { return value(r.rank(), i); };
      const Tensor up = r.filled(count, DType::f32, mine), down = r.filled(count, DType::f32, mine);
      const Tensor from_before = Tensor::empty(r.stream, {count}, DType::f32),
                   from_next = Tensor::empty(r.stream, {count}, DType::f32);
      // With two ranks both messages have the same peer, and keep their order.
      g.exchange({{Kind::send, up, next},
                  {Kind::receive, from_before, before},
                  {Kind::send, down, before},
                  {Kind::receive, from_next, next}},
                 r.stream);
      require_values(
          r, from_before, [&](int64_t i) { return value(before, i); }, "before");
      require_values(
          r, from_next, [&](int64_t i) { return value(next, i); }, "next");
    }
    // A chain of plain sends and receives.
    const Tensor token = r.filled(3, DType::i32, [](int64_t i) { return double(i); });
    if (r.rank() > 0) g.receive(token, r.rank() - 1, r.stream);
    if (r.rank() + 1 < n) g.send(token, r.rank() + 1, r.stream);
    r.device.synchronize();
  });
}

TEST_CASE("messages move whatever the order in which the peers begin theirs") {
  on_all(
      [](TestRank& r) {
        const Group g = r.world.world_group();
        const int64_t count = 3 << 18;  // several pieces
        const auto fill = [&] {
          return r.filled(count, DType::f32, [&](int64_t i) { return value(r.rank(), i); });
        };
        const auto check = [&](const Tensor& t, int from) {
          require_values(
              r, t, [&](int64_t i) { return value(from, i); }, "message");
        };
        const Tensor a = fill(), b = fill();
        using Kind = Transfer::Kind;
        if (r.rank() == 0) {
          g.exchange({{Kind::send, a, 1}, {Kind::send, b, 2}}, r.stream);
        } else if (r.rank() == 1) {
          g.receive(b, 0, r.stream);
          g.send(a, 2, r.stream);
          check(b, 0);
        } else {
          g.receive(a, 1, r.stream);
          g.receive(b, 0, r.stream);
          check(a, 1);
          check(b, 0);
        }
        r.device.synchronize();
      },
      {3});
}

TEST_CASE("groups of some ranks, and of one") {
  on_all(
      [](TestRank& r) {
        const mesh::Mesh mesh = mesh::device_mesh({.dp_shard = 2, .tp = 2});
        const Group tp = r.world.group("tp", mesh, {mesh::Axis::tp}),
                    dp = r.world.group("dp", mesh, mesh::dp_axes()),
                    pp = r.world.group("pp", mesh, {mesh::Axis::pp});
        require(tp.size() == 2 && dp.size() == 2 && pp.size() == 1, "sizes");
        const Tensor t = r.filled(5, DType::i32, [&](int64_t) { return double(1 << r.rank()); });
        tp.all_reduce(t, Reduce::sum, r.stream);
        require_values(
            r, t, [&](int64_t) { return r.rank() < 2 ? 3 : 12; }, "tp");
        dp.all_reduce(t, Reduce::sum, r.stream);
        require_values(
            r, t, [&](int64_t) { return 15; }, "dp");
        pp.all_reduce(t, Reduce::sum, r.stream);
        const Tensor copy = Tensor::empty(r.stream, {5}, DType::i32);
        pp.all_gather(t, copy, r.stream);
        require_values(
            r, copy, [&](int64_t) { return 15; }, "pp");
      },
      {4});
}

TEST_CASE("groups on different streams run side by side") {
  on_all([](TestRank& r) {
    const Group a = r.world.group("a", r.world.world_group().ranks()),
                b = r.world.group("b", r.world.world_group().ranks());
    Stream& other = r.device.stream(device::StreamKind::dp_param);
    const auto mine = [&](int64_t k) { return value(r.rank(), k); };
    std::vector<Tensor> xs, sums, ys;
    for (int i = 0; i < 20; ++i) {
      xs.push_back(r.filled(3000, DType::f32, mine));
      sums.push_back(r.filled(3000, DType::f32, mine));
      ys.push_back(Tensor::empty(other, {3000 * r.size()}, DType::f32));
    }
    other.wait(r.stream.record());  // edge: filled -> gathered
    // There is no other edge, and ranks use the two groups in different orders: one channel would
    // confuse them.
    for (size_t i = 0; i < 20; ++i) {
      if (r.rank() % 2) b.all_gather(xs[i], ys[i], other);
      a.all_reduce(sums[i], Reduce::sum, r.stream);
      if (r.rank() % 2 == 0) b.all_gather(xs[i], ys[i], other);
    }
    r.stream.wait(other.record());
    require_values(
        r, ys[19], [](int64_t i) { return value(int(i / 3000), i % 3000); }, "gathered");
  });
}

TEST_CASE("every rank has the same bits") {
  for (const auto& backend : comm_backends()) {
    std::vector<std::vector<double>> results(4);
    run_ranks(4, backend, [&](TestRank& r) {
      const Tensor t = r.filled(
          10007, DType::f32, [&](int64_t i) { return 1.0 / double(1 + i * (r.rank() + 1) % 977); });
      r.world.world_group().all_reduce(t, Reduce::sum, r.stream);
      results[size_t(r.rank())] = r.values(t);
    });
    for (const auto& other : results) CHECK((other == results[0]));
  }
}

TEST_CASE("a rank that fails unblocks its peers, and the first failure is reported") {
  for (const auto& backend : comm_backends()) {
    const auto start = std::chrono::steady_clock::now();
    try {
      run_ranks(4, backend, [](TestRank& r) {
        const Group g = r.world.world_group();
        g.barrier(r.stream);
        r.device.synchronize();
        if (r.rank() == 2) throw RunError("disk full");
        const Tensor t = r.filled(10, DType::f32, [](int64_t) { return 1; });
        g.all_reduce(t, Reduce::sum, r.stream);
        r.device.synchronize();
      });
      FAIL("nothing was thrown");
    } catch (const RunError& e) {
      CHECK(e.message() == "disk full");
    }
    // Far below the timeout of 20 s.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE("a rank that does not come is named, with the operation, its number and the group") {
  for (const auto& backend : comm_backends()) {
    std::atomic<bool> over{false};
    try {
      run_ranks(3, backend,
                [&](TestRank& r) {
                  const Group g = r.world.group("dp_cp", {0, 1, 2});
                  g.barrier(r.stream);
                  r.device.synchronize();
                  if (r.rank() == 1) {  // hangs
                    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                    return;
                  }
                  const Tensor t = r.filled(10, DType::f32, [](int64_t) { return 1; });
                  g.all_reduce(t, Reduce::sum, r.stream);
                  try {
                    r.device.synchronize();
                  } catch (...) {
                    over = true;
                    throw;
                  }
                },
                {.timeout_s = 0.3});
      FAIL("nothing was thrown");
    } catch (const CommError& e) {
      CAPTURE(e.message());
      CHECK(e.message().find("all_reduce 2 of group dp_cp") != std::string::npos);
      CHECK(e.message().find("rank 1 of the group did not arrive") != std::string::npos);
    }
  }
}

TEST_CASE("parts that do not fit together are an error, and nothing is sent") {
  for (const auto& backend : comm_backends()) {
    CAPTURE(backend);
    try {
      run_ranks(2, backend, [](TestRank& r) {
        const Tensor in = r.filled(10, DType::f32, [](int64_t) { return 1; });
        const Tensor out = Tensor::empty(r.stream, {20}, DType::f32);
        // Rank 0 sends 5; rank 1 expects 7.
        const int64_t from_peer = r.rank() == 1 ? 7 : 5;
        std::vector<int64_t> receives{5, from_peer};
        if (r.rank() == 1) std::swap(receives[0], receives[1]);
        r.world.world_group().all_to_all(in, {5, 5}, out, receives, r.stream);
        r.device.synchronize();
      });
      FAIL("nothing was thrown");
    } catch (const Error& e) {
      CAPTURE(e.message());
      const bool told =
          e.message().find("of tensor 0 rank 0 sends 5 elements") != std::string::npos &&
          e.message().find("rank 1 expects 7") != std::string::npos;
      CHECK((told || dynamic_cast<const CommError*>(&e)));  // rank 0 may be the first to end
    }
  }
}

TEST_CASE("an emulated link delays completion, not more and not less") {
  for (const auto& backend : comm_backends()) {
    // 4 MB at 1 Gbit/s: an all-gather of two ranks sends half, 16 ms; 2 ms of latency.
    std::atomic<double> shortest{1e9};
    run_ranks(
        2, backend,
        [&](TestRank& r) {
          const Group g = r.world.world_group();
          const Tensor in = r.filled(500000, DType::f32, [](int64_t) { return 1; });
          const Tensor out = Tensor::empty(r.stream, {1000000}, DType::f32);
          for (int i = 0; i < 3; ++i) {
            r.device.synchronize();
            const auto start = std::chrono::steady_clock::now();
            g.all_gather(in, out, r.stream);
            r.device.synchronize();
            const double took =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            require(took >= 0.018, fmt::format("{} s", took));
            if (r.rank() == 0) shortest = std::min(shortest.load(), took);
          }
        },
        {.link = {.latency_us = 2000, .gbps = 1}});
    CHECK(shortest < 0.2);  // generous: the machine may be busy
  }
}

TEST_CASE("an emulated link holds a message back however early its receive was posted") {
  using Clock = std::chrono::steady_clock;
  for (const auto& backend : comm_backends()) {
    // 2 MB at 1 Gbit/s: 16 ms, and 2 ms of latency.
    std::atomic<Clock::rep> sent{0};
    std::atomic<int64_t> received_bytes{-1};
    struct Sink : device::TimingSink {
      void record(const device::Timing& t) override { last = t; }
      device::Timing last{"", device::StreamKind::compute, 0, 0};
    };
    std::array<Sink, 2> sinks;
    run_ranks(2, backend,
              [&](TestRank& r) {
                const Group g = r.world.world_group();
                const Tensor data = r.filled(500000, DType::f32, [](int64_t) { return 1; });
                g.barrier(r.stream);
                r.device.synchronize();
                r.device.set_timing_sink(&sinks[size_t(r.rank())]);
                if (r.rank() == 0) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  sent = Clock::now().time_since_epoch().count();
                  g.send(data, 1, r.stream);
                } else {
                  g.receive(data, 0, r.stream);
                }
                r.device.synchronize();
                if (r.rank() == 1) {
                  const Clock::duration took =
                      Clock::now().time_since_epoch() - Clock::duration(sent);
                  require(took >= std::chrono::milliseconds(18), "the message came too soon");
                  received_bytes = sinks[1].last.wire_bytes;
                }
                r.device.set_timing_sink(nullptr);
              },
              {.link = {.latency_us = 2000, .gbps = 1}});
    CAPTURE(backend);
    CHECK(sinks[0].last.wire_bytes == 2000000);
    CHECK(received_bytes == 0);  // they are counted where they are sent
    const device::Timing& t = sinks[1].last;
    CHECK(t.idle_ns.has_value() == (backend != "gloo"));
    if (!t.idle_ns) continue;
    // The link's time does not include the receive's wait before the sender was ready.
    CHECK(t.begin_ns + *t.idle_ns >= sent);
    CHECK(t.end_ns - t.begin_ns - *t.idle_ns >= 18'000'000);
  }
}

}  // namespace comm_group_contract_test
