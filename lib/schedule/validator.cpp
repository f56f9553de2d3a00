#include "schedule/validator.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/core.h>

#include "schedule/lower.h"
#include "schedule/simulator.h"

namespace mtrain::schedule {

namespace {

class Validator {
 public:
  explicit Validator(const Schedule& s) : s_(s) {
    for (const ActionList& list : s.ranks)
      for (const Action& a : list) {
        has_messages_ |= is_send(a.kind) || is_receive(a.kind);
        has_sharding_ |= a.kind == ActionKind::unshard || a.kind == ActionKind::reshard ||
                         a.kind == ActionKind::reduce;
      }
  }

  std::vector<std::string> run(const std::vector<int64_t>& max_in_flight) {
    check_sizes();
    if (faults_.empty()) check_numbers();
    if (faults_.empty()) check_order();
    if (faults_.empty() && has_messages_) check_messages();
    if (faults_.empty() && has_sharding_) check_sharding();
    if (faults_.empty() && !max_in_flight.empty()) check_in_flight(max_in_flight);
    if (faults_.empty()) check_deadlock();
    return std::move(faults_);
  }

 private:
  template <class... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static std::string place(int64_t rank, size_t i, const Action& a) {
    return fmt::format("rank {}, action {}: {}", rank, i, to_string(a));
  }
  template <class F>
  void each(const F& f) const {
    for (int64_t rank = 0; rank < s_.pp; ++rank)
      for (size_t i = 0; i < s_.ranks[size_t(rank)].size(); ++i)
        f(rank, i, s_.ranks[size_t(rank)][i]);
  }

  void check_sizes() {
    if (int64_t(s_.ranks.size()) != s_.pp)
      fault("there are {} lists for {} ranks", s_.ranks.size(), s_.pp);
    if (int64_t(s_.rank_of_stage.size()) != s_.stages)
      fault("{} of {} stages are given a rank", s_.rank_of_stage.size(), s_.stages);
    for (size_t stage = 0; stage < s_.rank_of_stage.size(); ++stage)
      if (s_.rank_of_stage[stage] < 0 || s_.rank_of_stage[stage] >= s_.pp)
        fault("stage {} is on rank {}, but there are {} ranks", stage, s_.rank_of_stage[stage],
              s_.pp);
  }

  void check_numbers() {
    each([&](int64_t rank, size_t i, const Action& a) {
      const auto at = [&] { return place(rank, i, a); };
      if (a.stage < 0 || a.stage >= s_.stages)
        return fault("{}: there are {} stages", at(), s_.stages);
      if (a.micro_batch < 0 || a.micro_batch >= s_.micro_batches)
        return fault("{}: there are {} micro-batches", at(), s_.micro_batches);
      if (s_.rank_of(a.stage) != rank)
        return fault("{}: stage {} is on rank {}", at(), a.stage, s_.rank_of(a.stage));
      if (!is_send(a.kind) && !is_receive(a.kind)) return;
      const int64_t other = other_stage(a);
      if (other < 0 || other >= s_.stages)
        fault("{}: there is no stage {}", at(), other);
      else if (s_.rank_of(other) == rank)
        fault("{}: stage {} is on the same rank", at(), other);
      else if (s_.rank_of(other) != a.peer)
        fault("{} with rank {}: stage {} is on rank {}", at(), a.peer, other, s_.rank_of(other));
    });
  }

  // Returns the stage at the other end of a message.
  static int64_t other_stage(const Action& a) {
    return a.stage + (a.kind == ActionKind::send_f || a.kind == ActionKind::recv_b ? 1 : -1);
  }

  using Kinds = unsigned;  // a bit for each kind
  static Kinds bit(ActionKind kind) { return 1u << unsigned(kind); }
  size_t cell(int64_t stage, int64_t micro_batch) const {
    return size_t(stage * s_.micro_batches + micro_batch);
  }

  // Returns an action that must come before `a` on its rank and has not come yet, or none.
  std::optional<Action> missing_before(const Action& a, const std::vector<Kinds>& done) const {
    const auto has = [&](int64_t stage, ActionKind kind) {
      return (done[cell(stage, a.micro_batch)] & bit(kind)) != 0;
    };
    const auto need = [&](int64_t stage, ActionKind kind) -> std::optional<Action> {
      if (has(stage, kind)) return {};
      return Action{kind, stage, a.micro_batch};
    };
    const int64_t home = s_.rank_of(a.stage);
    const auto first = [](std::optional<Action> one, std::optional<Action> other) {
      return one ? one : other;
    };
    switch (a.kind) {
      case ActionKind::F:
        if (a.stage == 0) return {};
        if (s_.rank_of(a.stage - 1) == home) return need(a.stage - 1, ActionKind::F);
        return has_messages_ ? need(a.stage, ActionKind::recv_f) : std::nullopt;
      case ActionKind::B:
      case ActionKind::I: {
        const auto forward = need(a.stage, ActionKind::F);
        if (a.stage == s_.stages - 1) return forward;
        if (s_.rank_of(a.stage + 1) == home)
          return first(forward, has(a.stage + 1, ActionKind::I) ? std::nullopt
                                                                : need(a.stage + 1, ActionKind::B));
        return first(forward, has_messages_ ? need(a.stage, ActionKind::recv_b) : std::nullopt);
      }
      case ActionKind::W: return need(a.stage, ActionKind::I);
      case ActionKind::send_f: return need(a.stage, ActionKind::F);
      case ActionKind::send_b:
        return has(a.stage, ActionKind::I) ? std::nullopt : need(a.stage, ActionKind::B);
      default: return {};
    }
  }

  // Checks that a forward and a backward that run together are adjacent and do not need each other.
  void check_pair(int64_t rank, size_t i, const Action& a) {
    if (!a.overlaps_next) return;
    const ActionList& list = s_.ranks[size_t(rank)];
    const auto at = [&] { return place(rank, i, a); };
    if (a.kind != ActionKind::F || i + 1 == list.size() || !gives_gradient(list[i + 1].kind))
      fault("{} must run together with a backward, but none is next", at());
    else if (list[i + 1].micro_batch == a.micro_batch)
      fault("{} cannot run together with {}, which needs it", at(), to_string(list[i + 1]));
  }

  void check_order() {
    std::vector<Kinds> done(size_t(s_.stages * s_.micro_batches));
    each([&](int64_t rank, size_t i, const Action& a) {
      if (!is_compute(a.kind) && !is_send(a.kind) && !is_receive(a.kind)) return;
      check_pair(rank, i, a);
      Kinds& kinds = done[cell(a.stage, a.micro_batch)];
      const auto at = [&] { return place(rank, i, a); };
      if (kinds & bit(a.kind)) fault("{} comes twice", at());
      const Action whole{ActionKind::B, a.stage, a.micro_batch};
      if (a.kind == ActionKind::B && kinds & bit(ActionKind::I))
        fault("{} comes after {}I{}, which is half of it", at(), a.stage, a.micro_batch);
      if ((a.kind == ActionKind::I || a.kind == ActionKind::W) && kinds & bit(ActionKind::B))
        fault("{} comes after {}, which includes it", at(), to_string(whole));
      else if (const auto missing = missing_before(a, done))
        fault("{} comes before {}", at(), to_string(*missing));
      kinds |= bit(a.kind);
    });
    for (int64_t stage = 0; stage < s_.stages; ++stage)
      for (int64_t m = 0; m < s_.micro_batches; ++m) {
        const Kinds kinds = done[cell(stage, m)];
        const auto lacks = [&](ActionKind kind) { return !(kinds & bit(kind)); };
        if (lacks(ActionKind::F))
          fault("rank {} never does {}F{}", s_.rank_of(stage), stage, m);
        else if (lacks(ActionKind::B) && lacks(ActionKind::I))
          fault("rank {} does neither {}B{} nor {}I{}", s_.rank_of(stage), stage, m, stage, m);
        else if (lacks(ActionKind::B) && lacks(ActionKind::W))
          fault("rank {} does {}I{} and never {}W{}", s_.rank_of(stage), stage, m, stage, m);
      }
  }

  // Messages from one rank to another, named by their receives, in the order of one of the two
  // ranks.
  using Messages = std::vector<std::pair<ActionKind, size_t>>;

  void check_messages() {
    std::map<std::pair<int64_t, int64_t>, std::pair<Messages, Messages>> channels;
    each([&](int64_t rank, size_t, const Action& a) {
      if (is_send(a.kind))
        channels[{rank, a.peer}].first.push_back(
            {a.kind == ActionKind::send_f ? ActionKind::recv_f : ActionKind::recv_b,
             cell(other_stage(a), a.micro_batch)});
      if (is_receive(a.kind))
        channels[{a.peer, rank}].second.push_back({a.kind, cell(a.stage, a.micro_batch)});
    });
    for (const auto& [ranks, lists] : channels) {
      const auto& [sent, received] = lists;
      if (sent != received) compare(ranks.first, ranks.second, sent, received);
    }
  }

  void compare(int64_t from, int64_t to, const Messages& sent, const Messages& received) {
    const auto name = [&](const Messages::value_type& m) {
      return to_string(
          {m.first, int64_t(m.second) / s_.micro_batches, int64_t(m.second) % s_.micro_batches});
    };
    // A message that is sent is also received, since the computation after it needs it.
    const size_t before = faults_.size();
    for (const auto& m : received)
      if (std::find(sent.begin(), sent.end(), m) == sent.end())
        fault("{}: rank {} waits for it, and rank {} never sends it", name(m), to, from);
    if (faults_.size() > before) return;
    const auto [one, other] = std::mismatch(sent.begin(), sent.end(), received.begin());
    fault("message {} from rank {} to rank {} is {}, where rank {} receives {}", one - sent.begin(),
          from, to, name(*one), to, name(*other));
  }

  void check_sharding() {
    enum class Weights { sharded, gathered };
    std::vector<Weights> weights(size_t(s_.stages), Weights::sharded);
    std::vector<int64_t> owed(size_t(s_.stages), s_.micro_batches), reduced(size_t(s_.stages));
    each([&](int64_t rank, size_t i, const Action& a) {
      const auto at = [&] { return place(rank, i, a); };
      Weights& w = weights[size_t(a.stage)];
      const bool gathered = w == Weights::gathered;
      if (is_compute(a.kind) && !gathered) fault("{} while the stage's weights are sharded", at());
      if (a.kind == ActionKind::B || a.kind == ActionKind::W) --owed[size_t(a.stage)];
      if (a.kind == ActionKind::unshard) {
        if (gathered) fault("{} of weights that are gathered", at());
        w = Weights::gathered;
      }
      if (a.kind == ActionKind::reshard) {
        if (!gathered) fault("{} of weights that are sharded", at());
        w = Weights::sharded;
      }
      if (a.kind == ActionKind::reduce) {
        if (owed[size_t(a.stage)] > 0)
          fault("{} before the gradients of {} micro-batches", at(), owed[size_t(a.stage)]);
        ++reduced[size_t(a.stage)];
      }
    });
    for (int64_t stage = 0; stage < s_.stages; ++stage) {
      if (weights[size_t(stage)] == Weights::gathered)
        fault("rank {} never frees stage {}'s weights", s_.rank_of(stage), stage);
      if (reduced[size_t(stage)] != 1)
        fault("rank {} reduces stage {}'s gradients {} times, instead of once", s_.rank_of(stage),
              stage, reduced[size_t(stage)]);
    }
  }

  void check_in_flight(const std::vector<int64_t>& most) {
    if (int64_t(most.size()) != s_.pp)
      return fault("bounds of {} ranks are given for {}", most.size(), s_.pp);
    for (int64_t rank = 0; rank < s_.pp; ++rank) {
      const int64_t peak = peak_in_flight(s_.ranks[size_t(rank)]).to_weight_gradient;
      if (peak > most[size_t(rank)])
        fault("rank {} holds activations of {} chunks at once, but its bound is {}", rank, peak,
              most[size_t(rank)]);
    }
  }

  void check_deadlock() {
    std::vector<StuckRank> stuck;
    const Schedule lowered = has_messages_ ? s_ : with_messages(s_);
    play(lowered, {}, stuck);
    if (stuck.empty()) return;
    // Every message that a rank waits for is sent by some rank. Following the waits therefore leads
    // to a cycle.
    std::map<int64_t, Action> waits;
    for (const auto& [rank, action] : stuck) waits[rank] = lowered.ranks[size_t(rank)][action];
    int64_t rank = stuck[0].rank;
    for (size_t i = 0; i < waits.size(); ++i) rank = waits.at(rank).peer;
    std::string circle;
    const int64_t first = rank;
    do {
      const Action& a = waits.at(rank);
      circle += fmt::format("{}rank {} waits at {} for rank {}", circle.empty() ? "" : ", ", rank,
                            to_string(a), a.peer);
      rank = a.peer;
    } while (rank != first);
    fault("deadlock: {}", circle);
  }

  const Schedule& s_;
  bool has_messages_ = false, has_sharding_ = false;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> schedule_faults(const Schedule& schedule,
                                         const std::vector<int64_t>& max_in_flight) {
  return Validator(schedule).run(max_in_flight);
}

}  // namespace mtrain::schedule
