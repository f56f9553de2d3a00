#include "comm/group.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "device/device.h"
#include "device/recording/records.h"

namespace mtrain::comm {

namespace {
// The bytes that a rank sends to other ranks and receives from them, under the best algorithm.
struct OverLink {
  double sent, received;
};
OverLink both_ways(double bytes) { return {bytes, bytes}; }
}  // namespace

struct Group::State {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<EmulatedLink> link;  // may be null
  // Calls that have run so far, for error messages. On a CPU those of a graph count at each replay;
  // on a GPU they count at the capture, and NCCL's own numbers are reported.
  std::shared_ptr<std::atomic<uint64_t>> calls = std::make_shared<std::atomic<uint64_t>>(0);

  // The number of messages to and from each rank so far, by rank in the group.
  struct MessageCounts {
    uint64_t sent = 0, received = 0;
  };
  std::vector<MessageCounts> message_counts;

  int size() const { return int(ranks.size()); }
  // Counts a message. Its id follows from the group, the two ranks, and its number among their
  // messages in this direction, so both ends have the same.
  device::MessageEnd next_message(Transfer::Kind kind, int peer);
  std::shared_ptr<EmulatedLink> link_of(const Stream& stream) const {
    return link && link->carries(stream.id()) ? link : nullptr;
  }

  // Enqueues one call, run(communicator, context), on `stream`. `sent` counts the bytes that this
  // rank sends to other ranks under the best algorithm; traces report it.
  template <class F>
  void enqueue(Stream& stream, device::LaunchInfo info, double sent, F run);
  // The same for a collective. If `link` emulates a slow link on this stream, the call ends when
  // the link has carried the data.
  template <class F>
  void enqueue_collective(Stream& stream, device::LaunchInfo info, OverLink bytes, F run);
};

namespace {

// The least number of bytes that a rank must send: all of `bytes` except its own part.
double all_but_own(int64_t bytes, int size) { return double(bytes) * (size - 1) / size; }

Communicator::Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Communicator::Clock::duration>(
      std::chrono::duration<double>(s));
}

// Reports to the launch's timing how long its call, which was ready at `begun`, waited for other
// ranks.
void tell_idle(const device::LaunchContext& context, const Communicator& c,
               Communicator::Clock::time_point begun) {
  if (!context.idle_ns) return;
  if (c.knows_last_start())
    *context.idle_ns =
        std::max<int64_t>(0, std::chrono::nanoseconds(c.last_start() - begun).count());
  else
    context.idle_ns->reset();
}

}  // namespace

device::MessageEnd Group::State::next_message(Transfer::Kind kind, int peer) {
  message_counts.resize(ranks.size());
  const bool sent = kind == Transfer::Kind::send;
  MessageCounts& counts = message_counts[size_t(peer)];
  const uint64_t own = uint64_t(ranks[size_t(rank)]), other = uint64_t(ranks[size_t(peer)]),
                 number = sent ? ++counts.sent : ++counts.received;
  const uint64_t id =
      Fnv1a().add(name).add(sent ? own : other).add(sent ? other : own).add(number).value();
  return {id, sent};
}

EmulatedLink::EmulatedLink(Link link) : link_(std::move(link)) {
  for (const std::string& name : link_.streams) {
    bool known = false;
    for (int kind = 0; kind <= int(device::StreamKind::tp); ++kind)
      known = known || stream_kind_name(device::StreamKind(kind)) == name;
    MT_CHECK(known, "an emulated link for streams `{}`", name);
  }
}

bool EmulatedLink::carries(device::StreamId stream) const {
  return link_.streams.empty() ||
         std::ranges::find(link_.streams, stream_kind_name(stream.kind)) != link_.streams.end();
}

EmulatedLink::TimePoint EmulatedLink::arrival(double bytes, int peers, TimePoint start) {
  const auto busy = seconds(link_.gbps > 0 ? bytes * 8 / (link_.gbps * 1e9) : 0),
             latency = seconds(link_.latency_us * 1e-6);
  const std::lock_guard lock(mutex_);
  free_ = std::max(start, free_) + busy;
  if (bytes > kPacketBytes * peers) return free_ + latency;
  packets_free_ = std::max(start, packets_free_) + busy;
  return packets_free_ + latency;
}

template <class F>
void Group::State::enqueue(Stream& stream, device::LaunchInfo info, double sent, F run) {
  const char* what = info.name;
  // Everything is captured by value, since the group may be gone when the work runs.
  auto work = [c = communicator, name = name, members = ranks, me = rank, calls = calls, what,
               run = std::move(run)](const device::LaunchContext& context) {
    const uint64_t number = ++*calls;
    try {
      run(*c, context);
    } catch (const CommError& e) {
      c->abort(e.message());  // otherwise peers would wait for their timeout
      throw CommError(
          fmt::format("{} {} of group {} on rank {} ({} of {} in the group): {}", what, number,
                      name, members[size_t(me)], me, members.size(), e.message()),
          e.hint());
    }
  };
  info.wire_bytes = int64_t(sent);
  stream.launch(std::move(info), std::move(work));
  if (device::Records* records = stream.device().records()) records->set_group(name, ranks);
}

template <class F>
void Group::State::enqueue_collective(Stream& stream, device::LaunchInfo info, OverLink bytes,
                                      F run) {
  // A link carries data both ways at once; the larger number of bytes decides how long it is busy.
  const double kept = std::max(bytes.sent, bytes.received);
  enqueue(stream, std::move(info), bytes.sent,
          [link = link_of(stream), kept, peers = size() - 1, run = std::move(run)](
              Communicator& c, const device::LaunchContext& context) {
            Communicator::Clock::time_point begun;
            if (context.idle_ns) begun = Communicator::Clock::now();
            run(c, context);
            tell_idle(context, c, begun);
            if (link) std::this_thread::sleep_until(link->arrival(kept, peers, c.last_start()));
          });
}

Group::Group(std::string name, std::vector<int> ranks, int rank,
             std::shared_ptr<Communicator> communicator, std::shared_ptr<EmulatedLink> link)
    : state_(std::make_shared<State>()) {
  MT_CHECK(rank >= 0 && rank < int(ranks.size()), "group {}: rank {} of {}", name, rank,
           ranks.size());
  MT_CHECK(communicator || ranks.size() == 1, "group {} of {} ranks needs a communicator", name,
           ranks.size());
  state_->name = std::move(name);
  state_->ranks = std::move(ranks);
  state_->rank = rank;
  state_->communicator = std::move(communicator);
  state_->link = std::move(link);
}

int Group::rank() const { return state_ ? state_->rank : 0; }
int Group::size() const { return state_ ? state_->size() : 0; }
const std::string& Group::name() const { return state_->name; }
const std::vector<int>& Group::ranks() const { return state_->ranks; }

namespace {

// The collective of a group of one rank: a copy.
void copy(const char* name, const Tensor& in, const Tensor& out, Stream& stream) {
  if (in.data() == out.data() || in.count() == 0) return;
  const Span to = out;
  const ConstSpan from = in;
  stream.launch({.name = name, .reads = {in}, .writes = {out}},
                [to, from](const device::LaunchContext& c) {
                  copy_on_device(c, to.data, from.data, from.bytes());
                });
}

}  // namespace

void Group::all_reduce(const Tensor& data, Reduce op, Stream& stream) const {
  if (size() == 1) return;
  const OverLink wire = both_ways(2 * all_but_own(data.bytes(), size()));
  state_->enqueue_collective(
      stream, {.name = "all_reduce", .reads = {data}, .writes = {data}}, wire,
      [data = Span(data), op](Communicator& c, const device::LaunchContext& context) {
        c.all_reduce(data, op, context);
      });
}

void Group::reduce_scatter(const Tensor& in, const Tensor& out, Reduce op, Stream& stream) const {
  MT_CHECK(in.count() == out.count() * size() && in.dtype() == out.dtype(),
           "reduce_scatter in {}: {} elements in, {} out, {} ranks", name(), in.count(),
           out.count(), size());
  if (size() == 1) return copy("reduce_scatter", in, out, stream);
  state_->enqueue_collective(stream, {.name = "reduce_scatter", .reads = {in}, .writes = {out}},
                             both_ways(all_but_own(in.bytes(), size())),
                             [in = ConstSpan(in), out = Span(out), op](
                                 Communicator& c, const device::LaunchContext& context) {
                               c.reduce_scatter(in, out, op, context);
                             });
}

void Group::all_gather(const Tensor& in, const Tensor& out, Stream& stream) const {
  MT_CHECK(out.count() == in.count() * size() && in.dtype() == out.dtype(),
           "all_gather in {}: {} elements in, {} out, {} ranks", name(), in.count(), out.count(),
           size());
  if (size() == 1) return copy("all_gather", in, out, stream);
  state_->enqueue_collective(
      stream, {.name = "all_gather", .reads = {in}, .writes = {out}},
      both_ways(all_but_own(out.bytes(), size())),
      [in = ConstSpan(in), out = Span(out)](Communicator& c, const device::LaunchContext& context) {
        c.all_gather(in, out, context);
      });
}

void Group::all_to_all(const Tensor& in, const Tensor& out, Stream& stream) const {
  MT_CHECK(in.count() % size() == 0 && in.count() == out.count(),
           "all_to_all in {}: {} elements in, {} out, {} ranks", name(), in.count(), out.count(),
           size());
  const std::vector<int64_t> parts(size_t(size()), in.count() / size());
  all_to_all(in, parts, out, parts, stream);
}

void Group::all_to_all(const Tensor& in, const std::vector<int64_t>& sends, const Tensor& out,
                       const std::vector<int64_t>& receives, Stream& stream) const {
  all_to_all({{in, sends, out, receives}}, stream);
}

void Group::all_to_all(const std::vector<AllToAllTensor>& tensors, Stream& stream) const {
  std::vector<AllToAllSpans> spans;
  device::LaunchInfo info{.name = "all_to_all"};
  OverLink wire{0, 0};
  const auto own = size_t(rank());
  for (const auto& [in, sends, out, receives] : tensors) {
    const int64_t sent = std::accumulate(sends.begin(), sends.end(), int64_t{0}),
                  received = std::accumulate(receives.begin(), receives.end(), int64_t{0});
    MT_CHECK(int(sends.size()) == size() && int(receives.size()) == size() && sent <= in.count() &&
                 received <= out.count() && in.dtype() == out.dtype(),
             "all_to_all in {}: sends {} of {} elements to {} ranks, receives {} of {}", name(),
             sent, in.count(), sends.size(), received, out.count());
    if (size() == 1) {
      copy("all_to_all", in, out, stream);
      continue;
    }
    const auto element = double(dtype_size(in.dtype()));
    wire.sent += double(sent - sends[own]) * element;
    wire.received += double(received - receives[own]) * element;
    info.reads.push_back(in);
    info.writes.push_back(out);
    spans.push_back({in, sends, out, receives});
  }
  if (spans.empty()) return;
  state_->enqueue_collective(
      stream, std::move(info), wire,
      [spans = std::move(spans)](Communicator& c, const device::LaunchContext& context) {
        c.all_to_all(spans, context);
      });
}

void Group::broadcast(const Tensor& data, int root, Stream& stream) const {
  MT_CHECK(root >= 0 && root < size(), "broadcast in {} from rank {} of {}", name(), root, size());
  if (size() == 1) return;
  device::LaunchInfo info{.name = "broadcast"};
  (rank() == root ? info.reads : info.writes).push_back(data);
  state_->enqueue_collective(
      stream, std::move(info), both_ways(double(data.bytes())),
      [data = Span(data), root](Communicator& c, const device::LaunchContext& context) {
        c.broadcast(data, root, context);
      });
}

void Group::send(const Tensor& data, int to, Stream& stream) const {
  exchange({{Transfer::Kind::send, data, to}}, stream);
}

void Group::receive(const Tensor& data, int from, Stream& stream) const {
  exchange({{Transfer::Kind::receive, data, from}}, stream);
}

void Group::exchange(std::vector<Message> messages, Stream& stream) const {
  device::LaunchInfo info{
      .name = messages.size() == 1 ? (messages[0].kind == Transfer::Kind::send ? "send" : "receive")
                                   : "exchange"};
  std::vector<Transfer> transfers;
  device::MessageEnds ends;
  double sent = 0;
  for (const Message& m : messages) {
    MT_CHECK(m.peer >= 0 && m.peer < size() && m.peer != rank(),
             "a message in {} between rank {} and rank {} of {}", name(), rank(), m.peer, size());
    const bool sends = m.kind == Transfer::Kind::send;
    (sends ? info.reads : info.writes).push_back(m.data);
    if (sends) sent += double(m.data.bytes());
    transfers.push_back({m.kind, m.data, m.peer});
    ends.push_back(state_->next_message(m.kind, m.peer));
  }
  if (transfers.empty()) return;
  if (stream.device().timing_sink())
    info.messages = std::make_shared<const device::MessageEnds>(std::move(ends));
  // An emulated link delays messages at their sender. A receive that is posted early does not get
  // them sooner.
  const auto link = info.reads.empty() ? nullptr : state_->link_of(stream);
  state_->enqueue(stream, std::move(info), sent,
                  [transfers, link, sent](Communicator& c, const device::LaunchContext& context) {
                    const auto begun = Communicator::Clock::now();
                    if (link) std::this_thread::sleep_until(link->arrival(sent, 1, begun));
                    c.exchange(transfers, begun, context);
                    tell_idle(context, c, begun);
                  });
}

void Group::barrier(Stream& stream) const {
  if (size() == 1) return;
  state_->enqueue_collective(
      stream, {.name = "barrier"}, both_ways(0),
      [](Communicator& c, const device::LaunchContext& context) { c.barrier(context); });
}

Tensor Group::registered(Stream& home, const Shape& shape, DType dtype,
                         device::MemoryCategory category, bool symmetric) const {
  const int64_t bytes = shape.count() * dtype_size(dtype);
  if (size() <= 1 || bytes == 0) return {};
  const auto memory = state_->communicator->register_memory(bytes, symmetric);
  if (!memory) return {};
  device::Allocator& allocator = home.device().allocator();
  return Tensor::over(allocator.adopt(memory, bytes, category, home), shape, dtype);
}

void Group::abort(std::string_view reason) const noexcept {
  if (state_ && state_->communicator) state_->communicator->abort(reason);
}

}  // namespace mtrain::comm
