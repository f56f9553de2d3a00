#include "comm/shm_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "comm/reduce.h"

namespace mtrain::comm {

namespace {

const std::byte* bytes_at(ConstSpan s, int64_t element) {
  return s.as<std::byte>() + element * dtype_size(s.dtype);
}
std::byte* bytes_at(Span s, int64_t element) {
  return s.as<std::byte>() + element * dtype_size(s.dtype);
}

class ShmCommunicator : public Communicator {
 public:
  ShmCommunicator(SharedMemoryChannel channel, std::shared_ptr<void> keep)
      : keep_(std::move(keep)), channel_(std::move(channel)) {}

  void all_reduce(Span data, Reduce op, const device::LaunchContext&) override {
    const int64_t size = dtype_size(data.dtype),
                  chunk = int64_t(SharedMemoryChannel::kSlotBytes) / size;
    begin();
    for (int64_t first = 0; first < data.count; first += chunk) {
      const int64_t n = std::min(chunk, data.count - first);
      // Every rank sums its part of the chunk; then all ranks copy the other parts.
      const auto part = [&](int rank) { return part_begin(n, ranks(), rank); };
      const int64_t own = part(rank()), own_count = part(rank() + 1) - own;
      step_together([&](std::byte* slot) { copy(slot, bytes_at(data, first), n * size); },
                    [&](const std::vector<const std::byte*>& slots) {
                      std::vector<const std::byte*> parts;
                      for (const std::byte* s : slots) parts.push_back(s + own * size);
                      reduce_parts(parts, {bytes_at(data, first + own), own_count, data.dtype}, op);
                    });
      step([&](std::byte* slot) { copy(slot, bytes_at(data, first + own), own_count * size); },
           [&](int peer, const std::byte* slot) {
             copy(bytes_at(data, first + part(peer)), slot, (part(peer + 1) - part(peer)) * size);
           });
    }
    if (data.count == 0) barrier({});
  }

  void reduce_scatter(ConstSpan in, Span out, Reduce op, const device::LaunchContext&) override {
    const int64_t size = dtype_size(in.dtype), chunk = slot_share(size);
    begin();
    for (int64_t first = 0; first < out.count; first += chunk) {
      const int64_t n = std::min(chunk, out.count - first);
      step_together(
          [&](std::byte* slot) {
            for (int peer = 0; peer < ranks(); ++peer)
              copy(slot + peer * n * size, bytes_at(in, peer * out.count + first), n * size);
          },
          [&](const std::vector<const std::byte*>& slots) {
            std::vector<const std::byte*> parts;
            for (const std::byte* s : slots) parts.push_back(s + rank() * n * size);
            reduce_parts(parts, {bytes_at(out, first), n, out.dtype}, op);
          });
    }
    if (out.count == 0) barrier({});
  }

  void all_gather(ConstSpan in, Span out, const device::LaunchContext&) override {
    const int64_t size = dtype_size(in.dtype),
                  chunk = int64_t(SharedMemoryChannel::kSlotBytes) / size;
    begin();
    const std::byte* own = bytes_at(out, rank() * in.count);
    if (in.data != own) copy(bytes_at(out, rank() * in.count), in.as<std::byte>(), in.bytes());
    for (int64_t first = 0; first < in.count; first += chunk) {
      const int64_t n = std::min(chunk, in.count - first);
      step([&](std::byte* slot) { copy(slot, own + first * size, n * size); },
           [&](int peer, const std::byte* slot) {
             copy(bytes_at(out, peer * in.count + first), slot, n * size);
           });
    }
    if (in.count == 0) barrier({});
  }

  void all_to_all(const std::vector<AllToAllSpans>& tensors,
                  const device::LaunchContext&) override {
    begin();
    const std::vector<int64_t> longest = longest_parts(tensors);
    for (size_t i = 0; i < tensors.size(); ++i) parts_to_all(tensors[i], longest[i]);
  }

  void broadcast(Span data, int root, const device::LaunchContext&) override {
    const int64_t size = dtype_size(data.dtype),
                  chunk = int64_t(SharedMemoryChannel::kSlotBytes) / size;
    begin();
    for (int64_t first = 0; first < data.count; first += chunk) {
      const int64_t n = std::min(chunk, data.count - first);
      step(
          [&](std::byte* slot) {
            if (rank() == root) copy(slot, bytes_at(data, first), n * size);
          },
          [&](int peer, const std::byte* slot) {
            if (peer == root) copy(bytes_at(data, first), slot, n * size);
          });
    }
    if (data.count == 0) barrier({});
  }

  void exchange(const std::vector<Transfer>& transfers, Clock::time_point begun,
                const device::LaunchContext&) override {
    last_start_ = begun;
    std::vector<SharedMemoryChannel::Message> messages;
    for (const Transfer& t : transfers)
      messages.push_back({t.kind == Transfer::Kind::send, t.peer, t.data.as<std::byte>(),
                          size_t(t.data.bytes()), begun});
    channel_.exchange(messages);
    for (const SharedMemoryChannel::Message& m : messages)
      last_start_ = std::max(last_start_, m.begun);
  }

  void barrier(const device::LaunchContext&) override {
    begin();
    step([](std::byte*) {}, [](int, const std::byte*) {});
  }

  void abort(std::string_view reason) noexcept override { channel_.abort(reason); }
  Clock::time_point last_start() const override { return last_start_; }
  bool knows_last_start() const override { return true; }

 private:
  int rank() const { return channel_.rank(); }
  int ranks() const { return channel_.ranks(); }
  int64_t slot_share(int64_t element_size) const {
    return int64_t(SharedMemoryChannel::kSlotBytes) / ranks() / element_size;
  }
  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, size_t(bytes));
  }

  // Returns the longest part of each tensor between any two ranks, which decides the number of
  // steps. For this, the ranks exchange the number of their tensors, the element sizes and the
  // sizes of all parts.
  std::vector<int64_t> longest_parts(const std::vector<AllToAllSpans>& tensors) {
    const auto n = size_t(ranks());
    std::vector<int64_t> own{int64_t(tensors.size())}, longest;
    for (const AllToAllSpans& t : tensors) {
      own.push_back(dtype_size(t.in.dtype));
      own.insert(own.end(), t.sends.begin(), t.sends.end());
      longest.push_back(*std::max_element(t.sends.begin(), t.sends.end()));
    }
    const size_t bytes = own.size() * sizeof(int64_t);
    MT_CHECK(bytes <= SharedMemoryChannel::kSlotBytes, "all_to_all of {} tensors over {} ranks",
             tensors.size(), n);
    step([&](std::byte* slot) { std::memcpy(slot, own.data(), bytes); },
         [&](int peer, const std::byte* slot) {
           std::vector<int64_t> theirs(own.size());
           std::memcpy(theirs.data(), slot, bytes);
           MT_CHECK(theirs[0] == own[0], "all_to_all: rank {} gives {} tensors, rank {} {}", peer,
                    theirs[0], rank(), own[0]);
           for (size_t i = 0; i < tensors.size(); ++i) {
             const int64_t* const parts = &theirs[1 + i * (n + 1)] + 1;
             longest[i] = std::max(longest[i], *std::max_element(parts, parts + n));
             MT_CHECK(parts[-1] == dtype_size(tensors[i].in.dtype) &&
                          parts[rank()] == tensors[i].receives[size_t(peer)],
                      "all_to_all: of tensor {} rank {} sends {} elements of {} bytes, rank {} "
                      "expects {} of {}",
                      i, peer, parts[rank()], parts[-1], rank(), tensors[i].receives[size_t(peer)],
                      dtype_size(tensors[i].in.dtype));
           }
         });
    return longest;
  }

  void parts_to_all(const AllToAllSpans& tensor, int64_t longest) {
    const auto& [in, sends, out, receives] = tensor;
    const int64_t size = dtype_size(in.dtype), chunk = slot_share(size);
    std::vector<int64_t> from(sends.size() + 1), to(sends.size() + 1);
    std::partial_sum(sends.begin(), sends.end(), from.begin() + 1);
    std::partial_sum(receives.begin(), receives.end(), to.begin() + 1);
    const auto me = size_t(rank());
    copy(bytes_at(out, to[me]), bytes_at(in, from[me]), sends[me] * size);
    for (int64_t first = 0; first < longest; first += chunk) {
      const auto left = [&](int64_t count) { return std::clamp<int64_t>(count - first, 0, chunk); };
      step(
          [&](std::byte* slot) {
            for (int peer = 0; peer < ranks(); ++peer)
              copy(slot + peer * chunk * size, bytes_at(in, from[size_t(peer)] + first),
                   left(sends[size_t(peer)]) * size);
          },
          [&](int peer, const std::byte* slot) {
            copy(bytes_at(out, to[size_t(peer)] + first), slot + rank() * chunk * size,
                 left(receives[size_t(peer)]) * size);
          });
    }
  }

  void begin() { channel_.arrive(); }
  template <class W, class R>
  void step(const W& write, const R& read) {
    channel_.step(write, read);
    last_start_ = channel_.all_arrived();
  }
  template <class W, class R>
  void step_together(const W& write, const R& read) {
    channel_.step_together(write, read);
    last_start_ = channel_.all_arrived();
  }

  std::shared_ptr<void> keep_;
  SharedMemoryChannel channel_;
  Clock::time_point last_start_;
};

}  // namespace

std::unique_ptr<Communicator> shm_communicator(SharedMemoryChannel channel,
                                               std::shared_ptr<void> keep) {
  return std::make_unique<ShmCommunicator>(std::move(channel), std::move(keep));
}

}  // namespace mtrain::comm
