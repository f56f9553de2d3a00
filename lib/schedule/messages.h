// The messages that a computation sends, and those that it waits for.
#pragma once
#include "schedule/action.h"

namespace mtrain::schedule {

struct StageMessage {
  Action send, receive;
};

// Sets `t` to the message that this computation sends to another rank; returns false for none.
bool message_of(const Schedule& s, const Action& a, StageMessage& t);

// Sets `receive` to the message that this computation waits for; returns false for none.
bool needed_message(const Schedule& s, const Action& a, Action& receive);

}  // namespace mtrain::schedule
