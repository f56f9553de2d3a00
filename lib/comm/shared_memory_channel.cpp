#include "comm/shared_memory_channel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/error.h"

namespace mtrain::comm {

namespace {

constexpr size_t kLine = 64;  // a cache line: words of different ranks do not share one
// A wait checks for dead peers once in this time.
constexpr std::chrono::milliseconds kSlice{20};

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The futex is not private: processes may share its word.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr,
                 0);
}

bool reached(uint32_t counter, uint32_t goal) { return int32_t(counter - goal) >= 0; }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct SharedMemoryChannel::Header {
  alignas(kLine) std::atomic<uint32_t> aborting;  // 1: a rank writes or has written the reason
  std::atomic<uint32_t> aborted;  // 1 + the rank that aborted, once its reason is written
  char reason[400];
};

struct SharedMemoryChannel::RankState {
  alignas(kLine) std::atomic<uint32_t> written;  // steps for which this rank has filled its slot
  std::atomic<uint32_t> written_sleepers;
  // When this rank arrived at the collective of each of its two slots' steps.
  std::atomic<SharedMemoryChannel::Clock::rep> arrived[2];
  alignas(kLine) std::atomic<uint32_t> read;  // steps that this rank has read to the end
  std::atomic<uint32_t> read_sleepers;
  // A peer that moves a message from or to this rank increments it.
  alignas(kLine) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> bell_sleepers;
};

struct SharedMemoryChannel::Mailbox {
  alignas(kLine) std::atomic<uint32_t> sent;              // number of pieces
  std::atomic<SharedMemoryChannel::Clock::rep> begun[2];  // Message::begun of each piece's message
  alignas(kLine) std::atomic<uint32_t> received;          // number of pieces
};

size_t SharedMemoryChannel::bytes(int ranks) {
  const auto n = size_t(ranks);
  return up(sizeof(Header) + n * sizeof(RankState) + n * n * sizeof(Mailbox), 4096) +
         n * 2 * kSlotBytes + n * n * 2 * kPieceBytes;
}

SharedMemoryChannel::SharedMemoryChannel(void* memory, int rank, int ranks, int ranks_on_host,
                                         std::chrono::nanoseconds timeout,
                                         std::function<bool(int)> gone)
    : header_(static_cast<Header*>(memory)),
      base_(static_cast<std::byte*>(memory)),
      rank_(rank),
      ranks_(ranks),
      timeout_(timeout),
      gone_(std::move(gone)),
      arrived_(Clock::now()),
      all_arrived_(arrived_),
      spins_(int(std::thread::hardware_concurrency()) >= ranks_on_host ? 2000 : 50) {}

SharedMemoryChannel::RankState& SharedMemoryChannel::state(int rank) const {
  return reinterpret_cast<RankState*>(base_ + sizeof(Header))[rank];
}

SharedMemoryChannel::Mailbox& SharedMemoryChannel::mailbox(int from, int to) const {
  std::byte* first = base_ + sizeof(Header) + size_t(ranks_) * sizeof(RankState);
  return reinterpret_cast<Mailbox*>(first)[from * ranks_ + to];
}

std::byte* SharedMemoryChannel::slot(int rank, uint32_t step) const {
  const auto n = size_t(ranks_);
  std::byte* first =
      base_ + up(sizeof(Header) + n * sizeof(RankState) + n * n * sizeof(Mailbox), 4096);
  return first + (size_t(rank) * 2 + step % 2) * kSlotBytes;
}

std::byte* SharedMemoryChannel::piece(int from, int to, uint32_t number) const {
  std::byte* first = slot(ranks_, 0);  // after the last slot
  return first + ((size_t(from) * size_t(ranks_) + size_t(to)) * 2 + number % 2) * kPieceBytes;
}

void SharedMemoryChannel::sleep_on(std::atomic<uint32_t>& word, uint32_t seen,
                                   std::atomic<uint32_t>& sleepers) {
  for (int i = 0; i < spins_; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    pause_briefly();
  }
  // A thread that changes the word reads `sleepers` afterwards. Both accesses are sequentially
  // consistent; therefore one of the two sides sees the other.
  sleepers.fetch_add(1);
  if (word.load() == seen) {
    const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
    futex(word, FUTEX_WAIT, seen, &slice);
  }
  sleepers.fetch_sub(1);
}

namespace {
void change(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleepers) {
  word.store(value);
  if (sleepers.load() > 0) futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}
void ring(std::atomic<uint32_t>& bell, std::atomic<uint32_t>& sleepers) {
  bell.fetch_add(1);
  if (sleepers.load() > 0) futex(bell, FUTEX_WAKE, INT_MAX, nullptr);
}
}  // namespace

void SharedMemoryChannel::check_not_aborted() const {
  if (const uint32_t by = header_->aborted.load(std::memory_order_acquire))
    // Another process wrote the reason: do not rely on a terminating zero.
    throw CommError(fmt::format(
        "rank {} of the group gave up: {}", by - 1,
        std::string_view(header_->reason, strnlen(header_->reason, sizeof header_->reason))));
}

void SharedMemoryChannel::check_alive(const Deadline& deadline,
                                      const std::function<std::string()>& missing) const {
  check_not_aborted();
  if (gone_)
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank_ && gone_(peer))
        throw CommError(fmt::format("the process of rank {} of the group is gone", peer));
  if (Clock::now() > deadline.end)
    throw CommError(fmt::format("{} after {:.3g} s", missing(),
                                std::chrono::duration<double>(timeout_).count()),
                    "a rank is stuck or slow; comm.timeout_s sets how long to wait");
}

std::string SharedMemoryChannel::not_arrived(uint32_t step) const {
  std::string ranks;
  for (int peer = 0; peer < ranks_; ++peer)
    if (!reached(state(peer).written.load(), step + 1))
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", peer);
  return fmt::format("rank {} of the group did not arrive", ranks);
}

void SharedMemoryChannel::await_step(int peer, uint32_t step, bool done, const Deadline& deadline) {
  RankState& s = state(peer);
  std::atomic<uint32_t>& word = done ? s.read : s.written;
  for (;;) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (reached(now, step + 1)) return;
    sleep_on(word, now, done ? s.read_sleepers : s.written_sleepers);
    if (reached(word.load(std::memory_order_acquire), step + 1)) return;
    try {
      check_alive(deadline, [&] { return not_arrived(step); });
    } catch (const CommError&) {
      // The peer may have done its last step and then ended.
      if (reached(word.load(std::memory_order_acquire), step + 1)) return;
      throw;
    }
  }
}

void SharedMemoryChannel::begin_step(const std::function<void(std::byte*)>& write,
                                     const Deadline& deadline) {
  check_not_aborted();
  // The slot is free when all ranks have read what it held two steps ago.
  for (int peer = 0; peer < ranks_; ++peer) await_step(peer, step_ - 2, true, deadline);
  write(slot(rank_, step_));
  state(rank_).arrived[step_ % 2].store(arrived_.time_since_epoch().count(),
                                        std::memory_order_relaxed);
  change(state(rank_).written, step_ + 1, state(rank_).written_sleepers);
}

void SharedMemoryChannel::note_arrivals() {
  all_arrived_ = arrived_;
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto since_epoch = state(peer).arrived[step_ % 2].load(std::memory_order_relaxed);
    all_arrived_ = std::max(all_arrived_, Clock::time_point(Clock::duration(since_epoch)));
  }
}

void SharedMemoryChannel::end_step() {
  change(state(rank_).read, step_ + 1, state(rank_).read_sleepers);
  ++step_;
}

void SharedMemoryChannel::step(const std::function<void(std::byte*)>& write,
                               const std::function<void(int, const std::byte*)>& read) {
  const Deadline deadline{Clock::now() + timeout_};
  begin_step(write, deadline);
  for (int i = 1; i < ranks_; ++i) {
    const int peer = (rank_ + i) % ranks_;
    await_step(peer, step_, false, deadline);
    read(peer, slot(peer, step_));
  }
  note_arrivals();
  end_step();
}

void SharedMemoryChannel::step_together(
    const std::function<void(std::byte*)>& write,
    const std::function<void(const std::vector<const std::byte*>&)>& read) {
  const Deadline deadline{Clock::now() + timeout_};
  begin_step(write, deadline);
  std::vector<const std::byte*> slots;
  for (int peer = 0; peer < ranks_; ++peer) {
    await_step(peer, step_, false, deadline);
    slots.push_back(slot(peer, step_));
  }
  note_arrivals();
  read(slots);
  end_step();
}

bool SharedMemoryChannel::advance(Message& m) {
  const int from = m.sends ? rank_ : m.peer, to = m.sends ? m.peer : rank_;
  Mailbox& box = mailbox(from, to);
  const uint32_t sent = box.sent.load(std::memory_order_acquire),
                 received = box.received.load(std::memory_order_acquire);
  const size_t bytes = std::min(kPieceBytes, m.bytes - m.done);
  if (m.sends) {
    if (sent - received == 2) return false;
    std::memcpy(piece(from, to, sent), m.data + m.done, bytes);
    box.begun[sent % 2].store(m.begun.time_since_epoch().count(), std::memory_order_relaxed);
    box.sent.store(sent + 1);
  } else {
    if (sent == received) return false;
    std::memcpy(m.data + m.done, piece(from, to, received), bytes);
    m.begun =
        Clock::time_point(Clock::duration(box.begun[received % 2].load(std::memory_order_relaxed)));
    box.received.store(received + 1);
  }
  m.done += bytes;
  ring(state(m.peer).bell, state(m.peer).bell_sleepers);
  return true;
}

void SharedMemoryChannel::exchange(std::vector<Message>& messages) {
  check_not_aborted();
  const Deadline deadline{Clock::now() + timeout_};
  RankState& own = state(rank_);
  for (;;) {
    const uint32_t bell = own.bell.load(std::memory_order_acquire);
    bool moved = false, open = false;
    // Only the first unfinished message of each direction between two ranks may move.
    std::vector<bool> busy(2 * size_t(ranks_));
    for (Message& m : messages) {
      if (m.done == m.bytes) continue;
      open = true;
      const size_t lane = 2 * size_t(m.peer) + m.sends;
      if (busy[lane]) continue;
      busy[lane] = true;
      moved = advance(m) || moved;
    }
    if (!open) break;
    if (moved) continue;
    sleep_on(own.bell, bell, own.bell_sleepers);
    check_alive(deadline, [&] {
      for (const Message& m : messages)
        if (m.done < m.bytes)
          return fmt::format("rank {} of the group did not {}", m.peer,
                             m.sends ? "take a message" : "send");
      return std::string("no message moved");
    });
  }
}

void SharedMemoryChannel::abort(std::string_view reason) noexcept {
  if (header_->aborting.exchange(1) != 0) return;
  reason = reason.substr(0, sizeof Header::reason - 1);
  std::memcpy(header_->reason, reason.data(), reason.size());
  header_->aborted.store(uint32_t(rank_) + 1);
  for (int peer = 0; peer < ranks_; ++peer)
    for (auto* word : {&state(peer).written, &state(peer).read, &state(peer).bell})
      futex(*word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace mtrain::comm
