// Memory that all ranks of a group share, and the protocol by which they pass data through it. The
// ranks are threads of a process or processes of a host; only the origin of the memory differs.
//
// A collective runs in steps. In a step every rank writes into its own slot, signals the others,
// and reads their slots. Each rank has two slots: it may write the next step while slow peers still
// read this one.
//
// Messages between two ranks go through a mailbox of two pieces for each ordered pair.
//
// A wait spins for a short time, then sleeps on a futex. It ends with a CommError at its deadline,
// when the group is aborted, or when a rank's process is gone.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::comm {

class SharedMemoryChannel {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kSlotBytes = 1 << 20;     // bytes that a rank writes in one step
  static constexpr size_t kPieceBytes = 256 << 10;  // bytes of one piece of a message

  // Returns the size of the memory for a group of `ranks`. It must be zero before the first rank
  // uses it.
  static size_t bytes(int ranks);

  // `memory` outlives the channel. `ranks_on_host` counts the ranks of all groups: a wait spins
  // only if each of them can have a core. gone(rank) returns whether a peer's process has ended;
  // `gone` may be empty.
  SharedMemoryChannel(void* memory, int rank, int ranks, int ranks_on_host,
                      std::chrono::nanoseconds timeout, std::function<bool(int)> gone);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Records that this rank is ready for the collective whose steps follow.
  void arrive() { arrived_ = Clock::now(); }
  // Returns when the last rank was ready for the collective of the previous step. The ranks share
  // their times of arrival; therefore the result is exact even if a rank notices an arrival late.
  Clock::time_point all_arrived() const { return all_arrived_; }

  // Does one step. write(slot) fills this rank's slot; read(peer, slot) is called for every peer as
  // soon as that peer has written, beginning with the next rank. One thread at a time may call it.
  void step(const std::function<void(std::byte*)>& write,
            const std::function<void(int, const std::byte*)>& read);
  // The same, but read(slots) is called once, when all ranks have written; slots[r] is rank r's
  // slot.
  void step_together(const std::function<void(std::byte*)>& write,
                     const std::function<void(const std::vector<const std::byte*>&)>& read);

  // One end of a message in progress.
  struct Message {
    bool sends;
    int peer;
    std::byte* data;
    size_t bytes;
    Clock::time_point begun{};  // when the sender was ready; exchange() sets it at the receiver
    size_t done = 0;            // bytes moved so far
  };
  // Moves all messages completely, in whatever order the peers begin theirs.
  void exchange(std::vector<Message>& messages);

  // Makes the calls of all ranks throw CommError, with the reason of the first abort. Any thread
  // may call it.
  void abort(std::string_view reason) noexcept;

 private:
  struct Header;
  struct RankState;
  struct Mailbox;

  struct Deadline {
    Clock::time_point end;
  };
  void await_step(int peer, uint32_t step, bool done, const Deadline& deadline);
  // Sleeps until `word` differs from `seen`, a short time has passed, or a peer wakes this thread.
  void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleepers);
  void check_not_aborted() const;
  void check_alive(const Deadline& deadline, const std::function<std::string()>& missing) const;
  std::string not_arrived(uint32_t step) const;
  bool advance(Message& m);  // returns false if nothing could be moved
  RankState& state(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  std::byte* slot(int rank, uint32_t step) const;
  std::byte* piece(int from, int to, uint32_t number) const;
  void begin_step(const std::function<void(std::byte*)>& write, const Deadline& deadline);
  void end_step();
  void note_arrivals();  // once all ranks have written this step

  Header* header_;
  std::byte* base_;
  int rank_, ranks_;
  std::chrono::nanoseconds timeout_;
  std::function<bool(int)> gone_;
  uint32_t step_ = 0;  // wraps around; only differences count
  Clock::time_point arrived_, all_arrived_;
  int spins_;
};

}  // namespace mtrain::comm
