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
  double starts = 0;  // time in the play of the lists
};
using Batches = std::vector<std::vector<Batch>>;  // by rank

struct Sent {
  Action receive;
  double when;
};
using Channels = std::map<std::pair<int64_t, int64_t>, std::deque<Sent>>;  // by sender and receiver

// Makes batches of one computation each. With `iterations`, a forward and the backward behind it
// are one batch.
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

double length(ActionKind kind) { return kind == ActionKind::B ? 2 : is_compute(kind) ? 1 : 0; }

// Runs the batches as if messages took no time.
class Play {
 public:
  Play(const Schedule& s, Batches& batches) : s_(s), batches_(batches) {}

  // Sets the times at which batches start and lists their messages; returns false if ranks wait for
  // each other for ever.
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

}  // namespace

Schedule with_batched_messages(const Schedule& s) {
  if (const Schedule as_needed = with_messages(s); runs_with_blocking_sends(as_needed))
    return as_needed;
  Channels channels;
  Batches batches = batches_of(s, true);
  // Ranks wait for each other if one's forward needs the result of the other's backward in the same
  // batch. Then every computation is a batch of its own.
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
    for (const Batch& batch : batches[rank]) {
      for (auto& [way, messages] : channels)
        for (; way.second == int64_t(rank) && !messages.empty() &&
               messages.front().when <= batch.starts;
             messages.pop_front())
          out.push_back(messages.front().receive);
      out.insert(out.end(), list.begin() + ptrdiff_t(batch.begin),
                 list.begin() + ptrdiff_t(batch.end));
      StageMessage t;
      for (size_t i = batch.begin; i < batch.end; ++i)
        if (message_of(s, list[i], t)) out.push_back(t.send);
    }
  }
  return lowered;
}

}  // namespace mtrain::schedule
