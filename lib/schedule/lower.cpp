#include "schedule/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "schedule/messages.h"

namespace mtrain::schedule {

namespace {

// The receives of one rank's messages to another, in the order of their sends.
struct Channel {
  ActionList receives;
  size_t taken = 0;
};
using MessageChannels = std::map<std::pair<int64_t, int64_t>, Channel>;  // by sender and receiver

// Returns how many computations run together at position `at`.
size_t together_at(const ActionList& computing, size_t at) {
  return computing[at].overlaps_next && at + 1 < computing.size() ? 2 : 1;
}

// Calls `f` for each message of the computation, or of the two that run together, in their order.
template <class F>
void for_sends(const Schedule& s, const ActionList& computing, size_t at, bool gradients_first,
               const F& f) {
  const size_t together = together_at(computing, at);
  StageMessage t;
  for (size_t k = 0; k < together; ++k)
    if (message_of(s, computing[at + (gradients_first ? together - 1 - k : k)], t)) f(t);
}

MessageChannels messages_in_order(const Schedule& s, bool gradients_first) {
  MessageChannels channels;
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    const ActionList& list = s.ranks[size_t(rank)];
    for (size_t i = 0; i < list.size(); i += together_at(list, i))
      for_sends(s, list, i, gradients_first, [&](const StageMessage& t) {
        channels[{rank, t.send.peer}].receives.push_back(t.receive);
      });
  }
  return channels;
}

}  // namespace

Schedule with_messages(const Schedule& s, bool gradients_first) {
  MessageChannels channels = messages_in_order(s, gradients_first);
  std::vector<bool> have[2];  // received: by way, then by the receiving stage and micro-batch
  for (auto& way : have) way.resize(size_t(s.stages * s.micro_batches));
  const auto has = [&](const Action& message) -> std::vector<bool>::reference {
    return have[message.kind == ActionKind::recv_b]
               [size_t(message.stage * s.micro_batches + message.micro_batch)];
  };
  Schedule lowered = s;
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    ActionList& list = lowered.ranks[size_t(rank)];
    list.clear();
    const auto receive_for = [&](const Action& a) {
      Action need;
      if (!needed_message(s, a, need)) return;
      Channel& channel = channels[{need.peer, rank}];
      while (!has(need)) {
        MT_CHECK(channel.taken < channel.receives.size(), "nothing sends what {} needs",
                 to_string(a));
        list.push_back(channel.receives[channel.taken++]);
        has(list.back()) = true;
      }
    };
    const ActionList& computing = s.ranks[size_t(rank)];
    for (size_t i = 0; i < computing.size(); i += together_at(computing, i)) {
      const size_t together = together_at(computing, i);
      for (size_t k = 0; k < together; ++k) receive_for(computing[i + k]);
      for (size_t k = 0; k < together; ++k) list.push_back(computing[i + k]);
      for_sends(s, computing, i, gradients_first,
                [&](const StageMessage& t) { list.push_back(t.send); });
    }
  }
  return lowered;
}

namespace {

// The positions at which each stage of a list computes, first to last.
std::map<int64_t, std::vector<size_t>> uses_of(const ActionList& list) {
  std::map<int64_t, std::vector<size_t>> uses;
  for (size_t i = 0; i < list.size(); ++i)
    if (is_compute(list[i].kind)) uses[list[i].stage].push_back(i);
  return uses;
}

ActionList sharded(const ActionList& list, size_t max_gathered) {
  const auto uses = uses_of(list);
  std::map<int64_t, size_t> used;  // how many of the uses have passed
  std::set<int64_t> gathered;
  ActionList out;
  const auto let_go = [&](const std::set<int64_t>& keep) {
    for (auto stage = gathered.begin(); stage != gathered.end();) {
      if (keep.contains(*stage)) {
        ++stage;
        continue;
      }
      out.push_back({ActionKind::reshard, *stage});
      stage = gathered.erase(stage);
    }
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    // Computations that run together stay together: the second's weights are gathered with the
    // first's.
    const bool second = i > 0 && list[i - 1].overlaps_next;
    if (is_compute(a.kind) && !second) {
      std::vector<std::pair<size_t, int64_t>> soonest;  // (position of the next use, stage)
      for (const auto& [stage, at] : uses)
        if (used[stage] < at.size()) soonest.push_back({at[used[stage]], stage});
      std::sort(soonest.begin(), soonest.end());
      if (soonest.size() > max_gathered) soonest.resize(max_gathered);
      std::set<int64_t> keep;
      for (const auto& [at, stage] : soonest) keep.insert(stage);
      let_go(keep);
      for (const auto& [at, stage] : soonest)
        if (gathered.insert(stage).second) out.push_back({ActionKind::unshard, stage});
    }
    out.push_back(a);
    if (!is_compute(a.kind)) continue;
    const bool last = ++used[a.stage] == uses.at(a.stage).size();
    if (last && a.kind != ActionKind::F) out.push_back({ActionKind::reduce, a.stage});
  }
  let_go({});
  return out;
}

}  // namespace

Schedule with_sharding(const Schedule& s, int64_t max_gathered) {
  MT_CHECK(max_gathered >= 2, "{} stages may be gathered; two may run together", max_gathered);
  Schedule out = s;
  for (ActionList& list : out.ranks) list = sharded(list, size_t(max_gathered));
  return out;
}

Schedule executed(const Schedule& computations, const Lowering& how) {
  const Schedule s =
      how.max_gathered ? with_sharding(computations, how.max_gathered) : computations;
  if (how.overlap) return with_messages(s, how.gradients_first);
  return how.one_by_one ? with_single_messages(s) : with_batched_messages(s);
}

Schedule forward_only(const Schedule& placed, int64_t micro_batches) {
  Schedule out{.name = "forward",
               .pp = placed.pp,
               .stages = placed.stages,
               .micro_batches = micro_batches,
               .rank_of_stage = placed.rank_of_stage};
  out.ranks.resize(size_t(out.pp));
  // All ranks have the same order: no two ranks wait for each other.
  for (int64_t first = 0; first < micro_batches; first += out.pp)
    for (int64_t stage = 0; stage < out.stages; ++stage)
      for (int64_t m = first; m < std::min(first + out.pp, micro_batches); ++m)
        out.ranks[size_t(out.rank_of(stage))].push_back({ActionKind::F, stage, m});
  return out;
}

namespace {

// Simulates lists whose messages block ranks.
class BlockingPlay {
 public:
  BlockingPlay(const Schedule& s, Blocking blocking)
      : s_(s), blocking_(blocking), ranks_(s.ranks.size()) {}

  bool reaches_ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        while (ranks_[rank].at < s_.ranks[rank].size() && step(int64_t(rank))) {
          ++ranks_[rank].at;
          moved = true;
        }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].at < s_.ranks[rank].size()) return false;
    return true;
  }

 private:
  struct Begun {
    int64_t sends = 0, receives = 0;
    int64_t taken() const { return std::min(sends, receives); }
  };
  struct Wait {
    const Begun* channel;
    int64_t taken;
    bool over() const { return channel->taken() >= taken; }
  };
  struct Rank {
    size_t at = 0;
    bool begun = false;         // one by one: the message at `at`
    std::vector<Wait> waits{};  // before the next computation
    Action paired{};            // the last backward that ran together with a forward
  };

  // Runs the rank's next action, or returns false if it has to wait.
  bool step(int64_t rank) {
    Rank& r = ranks_[size_t(rank)];
    const ActionList& list = s_.ranks[size_t(rank)];
    const Action& a = list[r.at];
    if (is_send(a.kind) || is_receive(a.kind)) return message(rank, r, a);
    if (!is_compute(a.kind)) return true;  // gathers and reductions wait for nothing here
    if (!std::ranges::all_of(r.waits, &Wait::over)) return false;
    r.waits.clear();
    if (r.at > 0 && list[r.at - 1].overlaps_next) r.paired = a;
    return true;
  }

  bool message(int64_t rank, Rank& r, const Action& a) {
    const bool sends = is_send(a.kind);
    if (!r.begun) {
      Begun& channel = sends ? channels_[{rank, a.peer}] : channels_[{a.peer, rank}];
      const int64_t number = sends ? ++channel.sends : ++channel.receives;
      const bool gradient = a.kind == ActionKind::send_b && r.paired.stage == a.stage &&
                            r.paired.micro_batch == a.micro_batch && gives_gradient(r.paired.kind);
      if (!sends || blocking_ != Blocking::paired_gradients || gradient)
        r.waits.push_back({&channel, number});
      r.begun = blocking_ == Blocking::one_by_one;
    }
    if (r.begun && !r.waits.back().over()) return false;
    r.begun = false;
    return true;
  }

  const Schedule& s_;
  const Blocking blocking_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int64_t, int64_t>, Begun> channels_;  // by sender and receiver
};

}  // namespace

bool runs_blocking(const Schedule& s, Blocking blocking) {
  return BlockingPlay(s, blocking).reaches_ends();
}

}  // namespace mtrain::schedule
