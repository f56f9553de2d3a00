// The kinds of error, by who can act on them. A message describes what is wrong with which value; a
// hint describes what to do.
#pragma once
#include <stdexcept>
#include <string>

#include <fmt/core.h>

namespace mtrain {

class Error : public std::runtime_error {
 public:
  Error(std::string message, std::string hint)
      : std::runtime_error(hint.empty() ? message : message + "\n  hint: " + hint),
        message_(std::move(message)),
        hint_(std::move(hint)) {}
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }

 private:
  std::string message_, hint_;
};

// The user's recipe, flag or file is wrong: exit code 2.
class UserError : public Error {
 public:
  explicit UserError(std::string message, std::string hint = "")
      : Error(std::move(message), std::move(hint)) {}
};

// The machine or the training failed although the job was valid (disk full, loss not finite): exit
// code 1.
class RunError : public Error {
 public:
  explicit RunError(std::string message, std::string hint = "")
      : Error(std::move(message), std::move(hint)) {}
};

// A peer has failed or did not connect: exit code 1, and the launcher may restart the job.
class CommError : public Error {
 public:
  explicit CommError(std::string message, std::string hint = "")
      : Error(std::move(message), std::move(hint)) {}
};

// mtrain itself is wrong: exit code 1. Thrown by MT_CHECK.
class BugError : public Error {
 public:
  explicit BugError(std::string message)
      : Error(std::move(message), "this is a bug in mtrain; please report it with the recipe") {}
};

[[noreturn]] void throw_bug(const char* file, int line, const char* condition,
                            const std::string& message);

}  // namespace mtrain

// Checks an invariant of mtrain's own code, in release builds too. The message is a fmt format
// string.
#define MT_CHECK(condition, ...)                                                          \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::mtrain::throw_bug(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
