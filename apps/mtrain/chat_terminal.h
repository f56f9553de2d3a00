// The terminal, or the pipes, of `mtrain generate --chat`.
#pragma once
#include "run/chat.h"

namespace mtrain {

// Runs the chat on stdin and stdout. On a terminal a prompt is shown, Ctrl-C ends an answer, and
// Ctrl-C twice, or Ctrl-D, ends the chat. Without one, each line is a message.
void run_chat_on_terminal(const run::ChatJob& job, const generate::GenerateOptions& options);

}  // namespace mtrain
