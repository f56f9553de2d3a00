#include <algorithm>
#include <deque>
#include <map>

#include "base/error.h"
#include "schedule/lower.h"
#include "schedule/messages.h"

namespace mtrain::schedule {

namespace {

// Actions list[begin, end) of a rank, between which it exchanges no messages.
struct Batch {
  size_t begin, end;
  double starts = 0, ends = 0;  // simulated times
};
using Batches = std::vector<std::vector<Batch>>;  // by rank

struct Sent {
  Action receive;
  double when;
};
using Channels = std::map<std::pair<int64_t, int64_t>, std::deque<Sent>>;  // by sender and receiver

// Makes batches of one computation each. With `iterations`, a forward and the backward that follows
// it are one batch.
Batches batches_of(const Schedule& s, bool iterations) {
  Batches batches;
  for (const ActionList& list : s.ranks) {
    std::vector<Batch>& own = batches.emplace_back();
    bool forward = false;  // the batch is a forward, which a backward may join
    for (size_t i = 0; i < list.size(); ++i) {
      const ActionKind kind = list[i].kind;
      const bool joins = !is_compute(kind) || (i > 0 && list[i - 1].overlaps_next) ||
                         (iterations && forward && kind == ActionKind::B);
      if (own.empty() || !joins) own.push_back({i, i});
      own.back().end = i + 1;
      if (is_compute(kind)) forward = kind == ActionKind::F && !joins;
    }
  }
  return batches;
}

// The order of the messages between two computations.
enum class Order { sends_first, one_by_one };

double length(ActionKind kind) { return kind == ActionKind::B ? 2 : is_compute(kind) ? 1 : 0; }

// Runs the batches as if messages took no time.
class Play {
 public:
  Play(const Schedule& s, Batches& batches) : s_(s), batches_(batches) {}

  // Sets the times at which batches start and lists their messages; returns false if ranks wait for
  // each other forever.
  bool run(Channels& channels) {
    std::vector<size_t> next(batches_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < batches_.size(); ++rank)
        while (next[rank] < batches_[rank].size() && begin(rank, next[rank], channels)) {
          ++next[rank];
          moved = true;
        }
    }
    for (size_t rank = 0; rank < batches_.size(); ++rank)
      if (next[rank] < batches_[rank].size()) return false;
    return true;
  }

 private:
  static auto key(const Action& a) { return std::tuple{a.kind, a.stage, a.micro_batch}; }

  bool begin(size_t rank, size_t number, Channels& channels) {
    const ActionList& list = s_.ranks[rank];
    Batch& batch = batches_[rank][number];
    double starts = number > 0 ? ended_[rank] : 0;
    Action need;
    for (size_t i = batch.begin; i < batch.end; ++i) {
      if (!needed_message(s_, list[i], need)) continue;
      const auto sent = sent_.find(key(need));
      if (sent == sent_.end()) return false;
      starts = std::max(starts, sent->second);
    }
    batch.starts = starts;
    double& ended = ended_[rank] = starts;
    for (size_t i = batch.begin; i < batch.end; ++i) ended += length(list[i].kind);
    batch.ends = ended;
    StageMessage t;
    for (size_t i = batch.begin; i < batch.end; ++i) {
      if (!message_of(s_, list[i], t)) continue;
      sent_[key(t.receive)] = ended;
      channels[{int64_t(rank), t.send.peer}].push_back({t.receive, ended});
    }
    return true;
  }

  const Schedule& s_;
  Batches& batches_;
  std::map<size_t, double> ended_;
  std::map<std::tuple<ActionKind, int64_t, int64_t>, double> sent_;  // when, by the receive
};

// A message at one of its ranks, and what decides its turn. All ranks sort by the same key, which
// prevents a deadlock: the message that comes first in all lists can always move.
struct Turn {
  Action message;
  double when;
  bool gradient;
  int64_t sender;
  auto key() const { return std::tuple{when, gradient, sender % 2, sender}; }
};

// Inserts messages where a simulation of the lists has them: a receive goes before the first batch
// that begins after its message has been sent.
Schedule with_played_messages(const Schedule& s, Order order) {
  Channels channels;
  Batches batches = batches_of(s, true);
  // Two ranks wait for each other if one's forward needs the result of the other's backward in the
  // same batch. Every computation is then a batch of its own.
  if (!Play(s, batches).run(channels)) {
    channels.clear();
    batches = batches_of(s, false);
    MT_CHECK(Play(s, batches).run(channels), "the lists of {} wait for each other", s.name);
  }
  Schedule lowered = s;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const ActionList& list = s.ranks[rank];
    ActionList& out = lowered.ranks[rank];
    out.clear();
    std::vector<Turn> turns;  // before the next batch
    const auto put_messages = [&] {
      if (order == Order::one_by_one) std::ranges::stable_sort(turns, {}, &Turn::key);
      for (const Turn& turn : turns) out.push_back(turn.message);
      turns.clear();
    };
    for (const Batch& batch : batches[rank]) {
      for (auto& [way, messages] : channels)
        for (; way.second == int64_t(rank) && !messages.empty() &&
               messages.front().when <= batch.starts;
             messages.pop_front()) {
          const Sent& sent = messages.front();
          turns.push_back(
              {sent.receive, sent.when, sent.receive.kind == ActionKind::recv_b, way.first});
        }
      put_messages();
      out.insert(out.end(), list.begin() + ptrdiff_t(batch.begin),
                 list.begin() + ptrdiff_t(batch.end));
      StageMessage t;
      for (size_t i = batch.begin; i < batch.end; ++i)
        if (message_of(s, list[i], t))
          turns.push_back({t.send, batch.ends, t.send.kind == ActionKind::send_b, int64_t(rank)});
    }
    put_messages();
  }
  return lowered;
}

}  // namespace

Schedule with_batched_messages(const Schedule& s) {
  if (const Schedule as_needed = with_messages(s); runs_blocking(as_needed, Blocking::all_messages))
    return as_needed;
  return with_played_messages(s, Order::sends_first);
}

Schedule with_single_messages(const Schedule& s) {
  return with_played_messages(s, Order::one_by_one);
}

}  // namespace mtrain::schedule
