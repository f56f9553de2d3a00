// Reports where a process crashes: SIGSEGV, SIGBUS, SIGABRT, and std::terminate.
#pragma once

namespace mtrain {

// Handles these signals from now on. At a crash it passes a text to `write`, which may be null, and
// prints it to stderr: the reason, and a line "\n  at <module>+<offset>" for each frame, the
// innermost first. The process then ends as it would have without this, also under a sanitizer,
// whose own handler comes next. The handlers belong to the process: programs call this, and
// libraries do not. `write` runs in a signal handler: it may only call async-signal-safe functions.
void report_crashes(void (*write)(const char* text));

}  // namespace mtrain
