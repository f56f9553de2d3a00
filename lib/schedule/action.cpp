#include "schedule/action.h"

#include <algorithm>

#include <fmt/core.h>

namespace mtrain::schedule {

namespace {
const char* kind_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::F: return "F";
    case ActionKind::B: return "B";
    case ActionKind::I: return "I";
    case ActionKind::W: return "W";
    case ActionKind::send_f: return "SEND_F";
    case ActionKind::recv_f: return "RECV_F";
    case ActionKind::send_b: return "SEND_B";
    case ActionKind::recv_b: return "RECV_B";
    case ActionKind::unshard: return "UNSHARD";
    case ActionKind::reshard: return "RESHARD";
    case ActionKind::reduce: return "REDUCE_GRAD";
  }
  return "?";
}
}  // namespace

bool is_compute(ActionKind kind) {
  return kind == ActionKind::F || kind == ActionKind::B || kind == ActionKind::I ||
         kind == ActionKind::W;
}

std::string to_string(const Action& a) {
  std::string text = fmt::format("{}{}", a.stage, kind_name(a.kind));
  if (is_compute(a.kind) || is_send(a.kind) || is_receive(a.kind))
    text += fmt::format("{}", a.micro_batch);
  return text;
}

std::string to_string(const ActionList& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) text += ", ";
    if (list[i].overlaps_next && i + 1 < list.size()) {
      text += fmt::format("({};{})OVERLAP_F_B", to_string(list[i]), to_string(list[i + 1]));
      ++i;
    } else {
      text += to_string(list[i]);
    }
  }
  return text;
}

InFlight peak_in_flight(const ActionList& list) {
  InFlight now, peak;
  for (const Action& a : list) {
    if (a.kind == ActionKind::F) ++now.to_input_gradient, ++now.to_weight_gradient;
    peak.to_input_gradient = std::max(peak.to_input_gradient, now.to_input_gradient);
    peak.to_weight_gradient = std::max(peak.to_weight_gradient, now.to_weight_gradient);
    if (gives_gradient(a.kind)) --now.to_input_gradient;
    if (a.kind == ActionKind::B || a.kind == ActionKind::W) --now.to_weight_gradient;
  }
  return peak;
}

}  // namespace mtrain::schedule
