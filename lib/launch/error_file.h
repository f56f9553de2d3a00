// The JSON file in which a failing rank reports the cause to the launcher. The launcher puts its
// path into MTRAIN_ERROR_FILE.
#pragma once
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::launch {

// Which kind of Error (base/error.h) ended the rank; crash: a signal or std::terminate; other: an
// exception of a library.
enum class ErrorKind { user, run, comm, bug, crash, other };

struct RankError {
  int rank = 0;
  ErrorKind kind = ErrorKind::other;
  std::string message, hint;
  double time = 0;                    // seconds of the system's clock
  std::vector<std::string> launches;  // the rank's last launches, newest last
  std::vector<std::string> frames;    // of a crash, the innermost first: "<module>+0x<offset>"
};

// Writes the file. Does nothing without a launcher, and keeps the first error of a process. Never
// throws.
void write_error_file(const std::exception& error, const std::vector<std::string>& launches = {});

// Returns a function that does the same for a RunError whose text is "<message>\n  hint: <hint>",
// and for a crash, whose text has lines "\n  at <frame>" (base/crashes.h). A signal handler may
// call it.
using WriteErrorText = void (*)(const char* text);
WriteErrorText error_file_of_handlers();

// Returns nothing if the file is missing or incomplete.
std::optional<RankError> read_error_file(const std::filesystem::path& path);

}  // namespace mtrain::launch
