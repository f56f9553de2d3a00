#include "comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/math.h"
#include "comm/gloo/ring_pieces.h"
#include "comm/reduce.h"

namespace mtrain::comm {

namespace {

constexpr int64_t kPieceBytes = 1 << 20;   // a longer piece would hold its connection for too long
constexpr int64_t kDirectBytes = 8 << 10;  // smaller data is limited by latency, not bandwidth
constexpr int64_t kScratchBytes = 4 << 20;
constexpr auto kPartingTime = std::chrono::nanoseconds(std::chrono::seconds(2));

const std::byte* at(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(std::unique_ptr<GlooMesh> mesh, std::unique_ptr<FailureReporter> reporter,
                   std::chrono::nanoseconds timeout)
      : mesh_(std::move(mesh)),
        reporter_(std::move(reporter)),
        timeout_(timeout),
        me_(mesh_->rank()),
        ranks_(mesh_->ranks()),
        sent_(size_t(ranks_)),
        received_(size_t(ranks_)) {}

  // The wait ends well before the timeout of a peer that is still at work.
  ~GlooCommunicator() override {
    if (!dead_ && !aborted_)
      mesh_->await_last_pieces(Clock::now() + std::min(timeout_ / 4, kPartingTime));
  }

  void all_reduce(Span data, Reduce op, const device::LaunchContext&) override {
    collective(fmt::format("all_reduce ({}) of {} {}", reduce_name(op), data.count,
                           dtype_name(data.dtype)),
               [&] {
                 if (data.bytes() <= kDirectBytes) return reduce_all(data, op);
                 const int64_t own = begin(data.count, me_) * dtype_size(data.dtype);
                 reduce_to_own(data, at(data.data, own), op);
                 gather(data);
               });
  }

  void reduce_scatter(ConstSpan in, Span out, Reduce op, const device::LaunchContext&) override {
    collective(fmt::format("reduce_scatter ({}) of {} {}", reduce_name(op), in.count,
                           dtype_name(in.dtype)),
               [&] { reduce_to_own(in, out.as<std::byte>(), op); });
  }

  void all_gather(ConstSpan in, Span out, const device::LaunchContext&) override {
    collective(fmt::format("all_gather of {} {}", in.count, dtype_name(in.dtype)), [&] {
      std::byte* own = at(out.data, me_ * in.bytes());
      if (in.data != own) copy(own, in.as<std::byte>(), in.bytes());
      gather(out);
    });
  }

  void all_to_all(const std::vector<AllToAllSpans>& tensors,
                  const device::LaunchContext&) override {
    collective(all_to_all_name(tensors), [&] {
      check_counts(tensors);
      for (const auto& [in, sends, out, receives] : tensors) {
        const int64_t size = dtype_size(in.dtype);
        std::vector<int64_t> from(sends.size() + 1), to(sends.size() + 1);
        std::partial_sum(sends.begin(), sends.end(), from.begin() + 1);
        std::partial_sum(receives.begin(), receives.end(), to.begin() + 1);
        const auto me = size_t(me_);
        copy(at(out.data, to[me] * size), at(in.data, from[me] * size), sends[me] * size);
        for_peers([&](int p) {
          receive(p, at(out.data, to[size_t(p)] * size), receives[size_t(p)] * size);
        });
        for_peers(
            [&](int p) { send(p, at(in.data, from[size_t(p)] * size), sends[size_t(p)] * size); });
      }
      await_all();
    });
  }

  // Data goes along a chain of ranks from the root; small data goes directly to all.
  void broadcast(Span data, int root, const device::LaunchContext&) override {
    collective(
        fmt::format("broadcast of {} {} from {}", data.count, dtype_name(data.dtype), root), [&] {
          const int place = (me_ - root + ranks_) % ranks_;
          if (data.bytes() <= kDirectBytes) {
            if (place > 0) receive(root, data.data, data.bytes());
            if (place == 0) for_peers([&](int p) { send(p, data.data, data.bytes()); });
            return await_all();
          }
          if (place > 0) receive(before(), data.data, data.bytes());
          for (int64_t first = 0; first < data.bytes(); first += kPieceBytes) {
            if (place > 0) await_receive(before());
            if (place + 1 < ranks_)
              send(next(), at(data.data, first), std::min(kPieceBytes, data.bytes() - first));
          }
          await_all();
        });
  }

  void exchange(const std::vector<Transfer>& transfers, Clock::time_point,
                const device::LaunchContext&) override {
    // The slot holds the message's number in its direction between the two ranks. The number of the
    // collective cannot be used, since the other ranks take no part.
    call({calls_, "messages", true}, [&] {
      for (const Transfer& t : transfers) {
        const bool sends = t.kind == Transfer::Kind::send;
        const uint64_t number = ++(sends ? sent_ : received_)[size_t(t.peer)];
        slot_ = uint64_t(1) << 63 | (number & 0x7fffffff) << 32 | uint32_t(t.data.bytes());
        sends ? send(t.peer, t.data.data, t.data.bytes())
              : receive(t.peer, t.data.data, t.data.bytes());
      }
      await_all();
    });
  }

  void barrier(const device::LaunchContext&) override {
    collective("barrier", [&] { meet(); });
  }

  void abort(std::string_view reason) noexcept override {
    if (aborted_.exchange(true)) return;
    reporter_->abort(reason);
    mesh_->break_off();
  }

  Clock::time_point last_start() const override { return last_start_; }

 private:
  int next() const { return (me_ + 1) % ranks_; }
  int before() const { return (me_ + ranks_ - 1) % ranks_; }
  int wrap(int rank) const { return (rank % ranks_ + ranks_) % ranks_; }
  // Returns where shard r of n elements begins; shards are spread evenly.
  int64_t begin(int64_t n, int r) const { return part_begin(n, ranks_, r); }
  // Calls f(peer) for all peers, beginning with the next rank: ranks must not all begin with the
  // same one.
  template <class F>
  void for_peers(const F& f) const {
    for (int i = 1; i < ranks_; ++i) f((me_ + i) % ranks_);
  }
  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, size_t(bytes));
  }
  std::byte* scratch(int64_t bytes) {
    if (int64_t(scratch_.size()) < bytes) scratch_.resize(size_t(bytes));
    return scratch_.data();
  }

  // Calls that differ between ranks get different slots: they time out instead of mixing data.
  template <class F>
  void collective(std::string what, const F& run) {
    const uint64_t number = ++calls_;
    slot_ = (number & 0x7fffffff) << 32 | uint32_t(Fnv1a().add(what).value());
    call({number, std::move(what), false}, run);
  }

  template <class F>
  void call(const GroupCall& call, const F& run) {
    if (dead_) throw CommError(*dead_);
    last_start_ = Clock::now();
    all_here_ = false;
    deadline_ = last_start_ + timeout_;
    open_.assign(size_t(ranks_), {});
    try {
      run();
    } catch (const CollectiveFailure& failure) {
      reporter_->report(call, failure);
      mesh_->close();
      const CommError error = reporter_->explain(call, failure);
      dead_ = error.message();
      throw error;
    } catch (const std::exception& e) {
      mesh_->close();
      dead_ = e.what();
      throw;
    }
  }

  // Moves complete messages in pieces; a message without bytes is one piece.
  void send(int to, const void* data, int64_t bytes) {
    int64_t first = 0;
    do {
      mesh_->send(to, slot_, at(data, first), size_t(std::min(kPieceBytes, bytes - first)));
      ++open_[size_t(to)].sends;
      first += kPieceBytes;
    } while (first < bytes);
  }
  void receive(int from, void* data, int64_t bytes) {
    int64_t first = 0;
    do {
      mesh_->receive(from, slot_, at(data, first), size_t(std::min(kPieceBytes, bytes - first)));
      ++open_[size_t(from)].receives;
      first += kPieceBytes;
    } while (first < bytes);
  }
  void await_send(int to) {
    mesh_->await_send(to, deadline_);
    --open_[size_t(to)].sends;
  }
  void await_receive(int from) {
    mesh_->await_receive(from, deadline_);
    --open_[size_t(from)].receives;
  }
  void await_all() {
    for_peers([&](int p) {
      while (open_[size_t(p)].receives > 0) await_receive(p);
    });
    for_peers([&](int p) {
      while (open_[size_t(p)].sends > 0) await_send(p);
    });
  }

  // Records that data of all other ranks has arrived: the last rank has therefore started. Later
  // calls within the same collective change nothing.
  void others_are_here() {
    if (!std::exchange(all_here_, true)) last_start_ = Clock::now();
  }

  // Returns when all ranks have arrived.
  void meet() {
    for_peers([&](int p) { receive(p, nullptr, 0); });
    for_peers([&](int p) { send(p, nullptr, 0); });
    for_peers([&](int p) { await_receive(p); });
    others_are_here();
    await_all();
  }

  // Sends each rank the number of elements that it will receive of each tensor. Checks that the
  // numbers from the other ranks equal those that this rank expects.
  void check_counts(const std::vector<AllToAllSpans>& tensors) {
    const size_t n = tensors.size();
    std::vector<int64_t> own(size_t(ranks_) * n), theirs(own.size());  // by rank and tensor
    for_peers([&](int p) {
      for (size_t i = 0; i < n; ++i) own[size_t(p) * n + i] = tensors[i].sends[size_t(p)];
    });
    const auto bytes = int64_t(n * sizeof(int64_t));
    for_peers([&](int p) { receive(p, &theirs[size_t(p) * n], bytes); });
    for_peers([&](int p) { send(p, &own[size_t(p) * n], bytes); });
    await_all();
    others_are_here();
    for_peers([&](int p) {
      for (size_t i = 0; i < n; ++i)
        MT_CHECK(theirs[size_t(p) * n + i] == tensors[i].receives[size_t(p)],
                 "all_to_all: of tensor {} rank {} sends {} elements, rank {} expects {}", i, p,
                 theirs[size_t(p) * n + i], me_, tensors[i].receives[size_t(p)]);
    });
  }

  // Every rank gets all data and sums it in the order of the ranks.
  void reduce_all(Span data, Reduce op) {
    const int64_t bytes = data.bytes();
    std::byte* all = scratch(ranks_ * bytes);
    for_peers([&](int p) { receive(p, all + p * bytes, bytes); });
    for_peers([&](int p) { send(p, data.data, bytes); });
    await_all();
    others_are_here();
    std::vector<const std::byte*> parts;
    for (int r = 0; r < ranks_; ++r)
      parts.push_back(r == me_ ? data.as<std::byte>() : all + r * bytes);
    reduce_parts(parts, data, op);
  }

  // `out` gets this rank's shard of the reduced `in`; it may be that shard of `in`.
  void reduce_to_own(ConstSpan in, std::byte* out, Reduce op) {
    if (in.count == 0) return meet();
    if (is_half(in.dtype) || in.bytes() <= kDirectBytes * ranks_) return reduce_shards(in, out, op);
    reduce_around(in, out, op == Reduce::average ? Reduce::sum : op);
    if (op == Reduce::average)
      average_sum({out, begin(in.count, me_ + 1) - begin(in.count, me_), in.dtype}, ranks_);
  }

  // Sends every shard directly to its rank, in chunks. That rank sums each chunk in the order of
  // the ranks while the next chunk is in flight.
  void reduce_shards(ConstSpan in, std::byte* out, Reduce op) {
    const int64_t size = dtype_size(in.dtype),
                  chunk =
                      std::clamp(kScratchBytes / (2 * ranks_), int64_t(4096), kPieceBytes) / size,
                  longest = begin(in.count, 1);
    std::byte* memory = scratch(2 * ranks_ * chunk * size);
    // Returns how many elements shard r has in the chunk that begins at `first`.
    const auto count = [&](int r, int64_t first) {
      return std::clamp<int64_t>(begin(in.count, r + 1) - begin(in.count, r) - first, 0, chunk);
    };
    const auto slot = [&](int r, int64_t first) {
      return memory + (first / chunk % 2 * ranks_ + r) * chunk * size;
    };
    const auto shard = [&](int r, int64_t first) {
      return at(in.data, (begin(in.count, r) + first) * size);
    };
    const auto start = [&](int64_t first) {
      if (first >= longest) return;
      for_peers([&](int p) { receive(p, slot(p, first), count(me_, first) * size); });
      for_peers([&](int p) { send(p, shard(p, first), count(p, first) * size); });
    };
    start(0);
    for (int64_t first = 0; first < longest; first += chunk) {
      start(first + chunk);
      for_peers([&](int p) { await_receive(p); });
      others_are_here();
      std::vector<const std::byte*> parts;
      for (int r = 0; r < ranks_; ++r)
        parts.push_back(r == me_ ? shard(me_, first) : slot(r, first));
      reduce_parts(parts, {out + first * size, count(me_, first), in.dtype}, op);
    }
    await_all();
  }

  // source(i) is the memory that is sent as piece i, target(i) the memory into which piece i is
  // received. received(i) must make the source of piece i + 2 ready.
  template <class Source, class Target, class Received>
  void run_ring(const RingPieces& ring, const Source& source, const Target& target,
                const Received& received) {
    const auto start = [&](int64_t i) {
      if (i >= ring.pieces()) return;
      const Span in = target(i);
      receive(before(), in.data, in.bytes());
      const ConstSpan out = source(i);
      send(next(), out.data, out.bytes());
    };
    start(0);
    start(1);
    for (int64_t i = 0; i < ring.pieces(); ++i) {
      await_receive(before());
      others_are_here();
      received(i);
      await_send(next());
      start(i + 2);
    }
  }

  // Partial sums travel around the ring; the shard's own rank adds last.
  void reduce_around(ConstSpan in, std::byte* out, Reduce op) {
    const int64_t size = dtype_size(in.dtype);
    const RingPieces ring(in.count, ranks_, kPieceBytes / size);
    // Piece i is received into buffer i % 4 and sent as piece i + 2; that send is awaited before
    // piece i + 4 is received into the same buffer.
    std::byte* memory = scratch(4 * ring.segment() * size);
    const auto buffer = [&](int64_t i) { return memory + i % 4 * ring.segment() * size; };
    const auto span = [&](const std::byte* data, int64_t i, int shard) {
      return ConstSpan{data, ring.elements(i, shard), in.dtype};
    };
    const auto own = [&](int64_t i, int shard) {
      return at(in.data, (begin(in.count, shard) + ring.first(i)) * size);
    };
    run_ring(
        ring,
        [&](int64_t i) {
          const int shard = wrap(me_ - 1 - ring.step(i));
          return span(ring.step(i) == 0 ? own(i, shard) : buffer(i - 2), i, shard);
        },
        [&](int64_t i) {
          return Span{buffer(i), ring.elements(i, wrap(me_ - 2 - ring.step(i))), in.dtype};
        },
        [&](int64_t i) {
          const int shard = wrap(me_ - 2 - ring.step(i));
          std::byte* to = shard == me_ ? out + ring.first(i) * size : buffer(i);
          reduce_parts({buffer(i), own(i, shard)}, {to, ring.elements(i, shard), in.dtype}, op);
        });
  }

  // Sends this rank's shard of `data` to all ranks and receives theirs.
  void gather(Span data) {
    if (data.count == 0) return meet();
    const int64_t size = dtype_size(data.dtype);
    if (data.bytes() <= kDirectBytes * ranks_) {
      const auto shard = [&](int r) { return at(data.data, begin(data.count, r) * size); };
      const auto bytes = [&](int r) {
        return (begin(data.count, r + 1) - begin(data.count, r)) * size;
      };
      for_peers([&](int p) { receive(p, shard(p), bytes(p)); });
      for_peers([&](int p) { send(p, shard(me_), bytes(me_)); });
      await_all();
      return others_are_here();
    }
    const RingPieces ring(data.count, ranks_, kPieceBytes / size);
    const auto piece = [&](int64_t i, int shard) {
      return Span{at(data.data, (begin(data.count, shard) + ring.first(i)) * size),
                  ring.elements(i, shard), data.dtype};
    };
    run_ring(
        ring, [&](int64_t i) { return piece(i, wrap(me_ - ring.step(i))); },
        [&](int64_t i) { return piece(i, wrap(me_ - 1 - ring.step(i))); }, [](int64_t) {});
  }

  struct Open {
    int64_t sends = 0, receives = 0;  // pieces begun and not yet awaited
  };

  const std::unique_ptr<GlooMesh> mesh_;
  const std::unique_ptr<FailureReporter> reporter_;
  const std::chrono::nanoseconds timeout_;
  const int me_, ranks_;
  std::atomic<bool> aborted_{false};
  // Only the thread that makes the calls uses the members below.
  std::optional<std::string> dead_;  // why the group cannot be used any more
  uint64_t calls_ = 0, slot_ = 0;
  std::vector<uint64_t> sent_, received_;  // messages, by peer
  std::vector<Open> open_;                 // by peer
  std::vector<std::byte> scratch_;
  Clock::time_point last_start_, deadline_;
  bool all_here_ = false;  // last_start_ is the time at which the last rank started
};

}  // namespace

std::unique_ptr<Communicator> gloo_communicator(std::unique_ptr<GlooMesh> mesh,
                                                std::unique_ptr<FailureReporter> reporter,
                                                std::chrono::nanoseconds timeout) {
  return std::make_unique<GlooCommunicator>(std::move(mesh), std::move(reporter), timeout);
}

}  // namespace mtrain::comm
