#include "schedule/messages.h"

namespace mtrain::schedule {

bool message_of(const Schedule& s, const Action& a, StageMessage& t) {
  const bool forward = a.kind == ActionKind::F;
  if (!forward && !gives_gradient(a.kind)) return false;
  const int64_t to = a.stage + (forward ? 1 : -1);
  if (to < 0 || to >= s.stages || s.rank_of(to) == s.rank_of(a.stage)) return false;
  t.send = {forward ? ActionKind::send_f : ActionKind::send_b, a.stage, a.micro_batch,
            s.rank_of(to)};
  t.receive = {forward ? ActionKind::recv_f : ActionKind::recv_b, to, a.micro_batch,
               s.rank_of(a.stage)};
  return true;
}

bool needed_message(const Schedule& s, const Action& a, Action& receive) {
  const bool forward = a.kind == ActionKind::F;
  if (!forward && !gives_gradient(a.kind)) return false;
  const int64_t from = a.stage + (forward ? -1 : 1);
  if (from < 0 || from >= s.stages || s.rank_of(from) == s.rank_of(a.stage)) return false;
  receive = {forward ? ActionKind::recv_f : ActionKind::recv_b, a.stage, a.micro_batch,
             s.rank_of(from)};
  return true;
}

}  // namespace mtrain::schedule
