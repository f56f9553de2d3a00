// Rules of debug: which faults can be, in which phase of a run, and which steps a trace can have.
#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "base/step_range.h"
#include "plan/rules/rules.h"

namespace mtrain::plan {

namespace {

using recipe::FaultConfig;
using Kind = FaultKind;
using Phase = FaultPhase;

// The phases of faults that not every phase can have.
struct PhasesOf {
  Kind kind;
  std::vector<Phase> phases;
};
const std::vector<PhasesOf>& limited() {
  using enum FaultPhase;
  static const std::vector<PhasesOf> rows{
      {Kind::device_error, {forward, backward, collective, optimizer, evaluation}},
      {Kind::stuck_stream, {forward, backward, collective, optimizer, evaluation}},
      {Kind::disconnect,
       {load, forward, backward, collective, optimizer, evaluation, staging, write, commit, end}},
      {Kind::io_error, {load, write, commit}},
      {Kind::nan, {forward, backward}},
      {Kind::spike, {backward}},
      {Kind::slow, {}}};
  return rows;
}

std::string words_of(const std::vector<Phase>& phases) {
  std::vector<std::string_view> words;
  for (const Phase p : phases) words.push_back(enum_name(p));
  return fmt::format("{}", fmt::join(words, ", "));
}

// One mistake of an entry, and what to write instead.
struct FaultMistake {
  bool wrong;
  std::string reason, hint;
};

std::vector<FaultMistake> mistakes_of_kind(const FaultConfig& f, Kind kind) {
  const auto row = std::ranges::find(limited(), kind, &PhasesOf::kind);
  const bool any = row == limited().end(), none = !any && row->phases.empty();
  const auto word = enum_name(kind);
  const bool factor = kind == Kind::slow || kind == Kind::spike;
  return {{!f.phase && !f.at && !none, fmt::format("`{}` needs a phase", word),
           fmt::format("phases are {}",
                       any ? "rendezvous, load, forward, backward, collective, "
                             "optimizer, evaluation, staging, write, commit and end"
                           : words_of(any || none ? std::vector<Phase>() : row->phases))},
          {f.phase && none, fmt::format("`{}` has no phase: it lasts from its step on", word),
           "leave phase out"},
          {f.phase && !any && !none && !std::ranges::count(row->phases, *f.phase),
           fmt::format("`{}` cannot be in phase {}", word, f.phase ? enum_name(*f.phase) : ""),
           none || any ? "" : fmt::format("its phases are {}", words_of(row->phases))},
          {f.at && kind != Kind::kill && kind != Kind::stop,
           fmt::format("`at` names a moment for kill and stop, not for {}", word), "give a phase"},
          {factor && !f.factor, fmt::format("`{}` needs a factor", word),
           kind == Kind::slow ? "factor: 1.5 makes computations take 1.5 times as long"
                              : "factor: 1000 multiplies the gradients of the step"},
          {!factor && f.factor.has_value(), fmt::format("`{}` has no factor", word),
           "slow and spike have one"},
          {!f.kill && f.kind && kind != Kind::stop, "kill: false and kind contradict each other",
           "kind: stop alone stops the rank"}};
}

std::vector<FaultMistake> mistakes_of_run(const FaultConfig& f, Kind kind, const Recipe& r,
                                          const Layout& l) {
  const bool cuda = r.train.device == recipe::DeviceChoice::cuda;
  const bool saves =
      f.phase == Phase::staging || f.phase == Phase::write || f.phase == Phase::commit;
  const bool before = f.phase == Phase::rendezvous || f.phase == Phase::load,
             end = f.phase == Phase::end;
  return {{f.phase && f.at, "phase and at say the same in two ways", "keep one of them"},
          {f.rank >= l.world, fmt::format("rank {} of {} ranks", f.rank, l.world),
           fmt::format("ranks are 0 to {}", l.world - 1)},
          {(before || end) && f.step != 1,
           fmt::format("there is no step in phase {}", f.phase ? enum_name(*f.phase) : ""),
           "leave step out"},
          {!before && !end && r.steps_known() && f.step > r.train.steps,
           fmt::format("step {} is after the last one, {}", f.step, r.train.steps),
           "give a step of the run"},
          {f.phase == Phase::collective && l.world == 1, "a single rank has no collectives",
           "start several ranks, or choose another phase"},
          {kind == Kind::disconnect && l.world == 1, "a single rank has no connections",
           "start several ranks"},
          {f.phase == Phase::evaluation && r.dataset.validation.empty(),
           "there is no evaluation without validation data", "set dataset.validation"},
          {saves && !r.checkpoint.enabled, "this run saves nothing", "set checkpoint.every_steps"},
          {kind == Kind::slow && cuda, "slows computations on the CPU, and train.device is cuda",
           "leave it out"}};
}

}  // namespace

void validate_debug(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  if (const auto& steps = r.debug.trace_steps) {
    diagnostics.require(parse_step_range(*steps).has_value(), {"debug.trace_steps"},
                        fmt::format("\"{}\" is not a range of steps", *steps),
                        "steps count from 1; write 10:20 for steps 10 to 20, 10: for all from step "
                        "10 on, or 10 for one step");
    diagnostics.require(r.debug.trace.has_value(), {"debug.trace_steps", "debug.trace"},
                        "chooses the steps of a trace, and no trace is written",
                        "add --trace t.json (debug.trace)");
  }
  for (size_t i = 0; i < r.debug.fault.size(); ++i) {
    const FaultConfig& f = r.debug.fault[i];
    if (f.empty()) continue;
    const Kind kind = f.kind.value_or(f.kill ? Kind::kill : Kind::stop);
    std::vector<FaultMistake> all = mistakes_of_kind(f, kind);
    std::ranges::move(mistakes_of_run(f, kind, r, l), std::back_inserter(all));
    for (const FaultMistake& m : all)
      diagnostics.require(
          !m.wrong, {"debug.fault"},
          r.debug.fault.size() > 1 ? fmt::format("fault {}: {}", i + 1, m.reason) : m.reason,
          m.hint);
  }
}

}  // namespace mtrain::plan
