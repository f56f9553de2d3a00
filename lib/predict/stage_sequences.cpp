#include "predict/stage_sequences.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace mtrain::predict {

using device::LaunchRecord;
using schedule::ActionKind;

std::optional<ScopeAction> action_of(const std::string& scope) {
  std::string_view text = std::string_view(scope).substr(0, scope.find(" > "));
  ScopeAction action{};
  const auto cut = [&](std::string_view prefix) {
    const bool has = text.starts_with(prefix);
    if (has) text.remove_prefix(prefix.size());
    return has;
  };
  action.delayed = cut("delayed ");
  cut("weights of ");
  const auto number = [&](int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(size_t(end - text.data()));
    return true;
  };
  if (!number(action.stage)) return {};
  struct Name {
    std::string_view text;
    ActionKind kind;
    bool micro_batch = true;
  };
  static constexpr Name kNames[] = {{"F", ActionKind::F},
                                    {"B", ActionKind::B},
                                    {"I", ActionKind::I},
                                    {"W", ActionKind::W},
                                    {"SEND_F", ActionKind::send_f},
                                    {"RECV_F", ActionKind::recv_f},
                                    {"SEND_B", ActionKind::send_b},
                                    {"RECV_B", ActionKind::recv_b},
                                    {"UNSHARD", ActionKind::unshard, false},
                                    {"RESHARD", ActionKind::reshard, false},
                                    {"REDUCE_GRAD", ActionKind::reduce, false}};
  const auto letters = text.substr(0, text.find_first_of("0123456789"));
  for (const Name& name : kNames) {
    if (name.text != letters) continue;
    action.kind = name.kind;
    text.remove_prefix(letters.size());
    if (name.micro_batch && !number(action.micro_batch)) return {};
    return action;
  }
  return {};
}

namespace {

class Numbers {
 public:
  Numbers(const device::Records& records, LaunchList& list, GroupLinks& links)
      : records_(records), list_(list), links_(links) {}
  uint32_t operator()(const LaunchRecord& r) {
    if (r.waits_for) return 0;
    if (r.group < 0) return list_.number_of(r, nullptr);
    by_group_.resize(records_.groups().size());
    const plan::GroupLink*& link = by_group_[size_t(r.group)];
    if (!link) link = &links_.of(records_.groups()[size_t(r.group)].ranks);
    return list_.number_of(r, link);
  }

 private:
  const device::Records& records_;
  LaunchList& list_;
  GroupLinks& links_;
  std::vector<const plan::GroupLink*> by_group_;
};

// Items of a record that belong to an action.
using Items = std::vector<const LaunchRecord*>;

LaunchSequence sequence(const Items& items, Numbers& numbers) {
  LaunchSequence s;
  for (const LaunchRecord* r : items) s.add(*r, numbers(*r));
  return s;
}

struct ActionItems {
  Items items, delayed;
};
using ByAction = std::map<std::tuple<ActionKind, int64_t, int64_t>, ActionItems>;
// By kind and stage: the micro-batches, in the order in which they run.
using InOrder = std::map<std::pair<ActionKind, int64_t>, std::vector<const ActionItems*>>;

// Returns sequences of the micro-batches that have this action, which are in order. Of two, the
// second forward is the one in the middle, since the first may wait for parameters; and the first
// backward, since the last reduces gradients.
MicroBatchSequences sequences_of(const std::vector<const ActionItems*>& micro_batches,
                                 ActionKind kind, Items ActionItems::*part, Numbers& numbers) {
  if (micro_batches.empty()) return {};
  const size_t count = micro_batches.size(),
               middle = kind == ActionKind::F ? count / 2 : (count - 1) / 2;
  const auto of = [&](size_t i) { return sequence(micro_batches[i]->*part, numbers); };
  return {.first = of(0), .middle = of(middle), .last = of(count - 1)};
}

void add_pairs(const schedule::ActionList& actions, const device::Records& records,
               const std::vector<std::optional<ScopeAction>>& of_item, Numbers& numbers,
               std::vector<PairSequence>& pairs) {
  std::map<schedule::PairKey, std::vector<size_t>> places;
  for (size_t i = 0; i + 1 < actions.size(); ++i)
    if (actions[i].overlaps_next)
      places[{actions[i].stage, actions[i + 1].stage, actions[i + 1].kind}].push_back(i);
  for (const auto& [key, at] : places) {
    const schedule::Action &f = actions[at[at.size() / 2]], &b = actions[at[at.size() / 2] + 1];
    PairSequence pair{.key = key};
    for (size_t i = 0; i < of_item.size(); ++i) {
      if (!of_item[i]) continue;
      for (const schedule::Action* a : {&f, &b})
        if (of_item[i]->kind == a->kind && of_item[i]->stage == a->stage &&
            of_item[i]->micro_batch == a->micro_batch)
          pair.sequence.add(records.items()[i], numbers(records.items()[i]));
    }
    pairs.push_back(std::move(pair));
  }
}

}  // namespace

LaunchSequence sequence_of(const device::Records& records, LaunchList& list, GroupLinks& links) {
  Numbers numbers(records, list, links);
  LaunchSequence s;
  for (const LaunchRecord& r : records.items()) s.add(r, numbers(r));
  return s;
}

PipelineRankSequences sort_by_action(const device::Records& records,
                                     const schedule::ActionList& actions, int64_t micro_batches,
                                     LaunchList& list, GroupLinks& links) {
  Numbers numbers(records, list, links);
  PipelineRankSequences out;
  ByAction all;
  InOrder in_order;
  std::map<int64_t, Items> gathers;
  std::vector<std::optional<ScopeAction>> of_item;
  const std::string* scope = nullptr;
  std::optional<ScopeAction> action;
  std::map<int64_t, ScopeAction> last;  // by stage
  int64_t largest_message = -1;
  bool begun = false;
  std::map<uint32_t, int64_t> uploads;  // how often each kind comes before the actions
  for (const LaunchRecord& r : records.items()) {
    if (r.scope.get() != scope) {
      scope = r.scope.get();
      action = scope ? action_of(*scope) : std::nullopt;
    }
    of_item.push_back(action);
    if (!action) {
      (begun ? out.after : out.before).add(r, numbers(r));
      if (!begun && !r.waits_for && std::string_view(r.name) == "upload") ++uploads[numbers(r)];
      continue;
    }
    begun = true;
    switch (action->kind) {
      case ActionKind::B:
      case ActionKind::W: last[action->stage] = *action; [[fallthrough]];
      case ActionKind::F:
      case ActionKind::I: {
        const auto [at, added] =
            all.try_emplace({action->kind, action->stage, action->micro_batch});
        ActionItems& items = at->second;
        if (added) in_order[{action->kind, action->stage}].push_back(&items);
        (action->delayed ? items.delayed : items.items).push_back(&r);
        break;
      }
      case ActionKind::unshard: gathers[action->stage].push_back(&r); break;
      default:
        if (r.stream.kind == device::StreamKind::pp_send && r.wire_bytes > largest_message) {
          largest_message = r.wire_bytes;
          out.send = numbers(r);
        }
    }
  }
  for (const auto& [upload, count] : uploads)
    for (int64_t i = 0; i < count / micro_batches; ++i) out.uploads.push_back(upload);
  for (const auto& [key, items] : all) out.stages.try_emplace(std::get<1>(key));
  for (auto& [stage, sequences] : out.stages) {
    constexpr std::array kKinds{ActionKind::F, ActionKind::B, ActionKind::I, ActionKind::W};
    for (const ActionKind kind : kKinds) {
      const auto& of_kind = in_order[{kind, stage}];
      sequences.actions[size_t(kind)] = sequences_of(of_kind, kind, &ActionItems::items, numbers);
      if (kind == ActionKind::B)
        sequences.delayed = sequences_of(of_kind, kind, &ActionItems::delayed, numbers);
    }
    if (const auto at = last.find(stage); at != last.end()) {
      const auto& [kind, s, micro_batch, delayed] = at->second;
      const ActionItems& items = all[{kind, stage, micro_batch}];
      Items both = items.items;
      both.insert(both.end(), items.delayed.begin(), items.delayed.end());
      sequences.last_gradients = sequence(both, numbers);
    }
    if (const auto at = gathers.find(stage); at != gathers.end()) {
      // A stage is gathered several times; each time alike.
      Items once;
      for (const LaunchRecord* r : at->second) {
        if (!once.empty() && r != once.back() + 1) break;
        once.push_back(r);
      }
      sequences.gather = sequence(once, numbers);
    }
  }
  add_pairs(actions, records, of_item, numbers, out.pairs);
  return out;
}

}  // namespace mtrain::predict
