// Which messages a computation gives rise to.
#pragma once
#include "schedule/action.h"

namespace mtrain {

struct StageMessage {
  Action send, receive;
};

// What this computation sends to another rank; false for nothing.
bool message_of(const Schedule& s, const Action& a, StageMessage& t);

// The message that this computation waits for; false for none.
bool needed_message(const Schedule& s, const Action& a, Action& receive);

}  // namespace mtrain
