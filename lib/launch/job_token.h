// The secret with which the ranks of a job authenticate each other. A rank gets it in one of three
// ways. It may be in the variable MTRAIN_TOKEN, which mtrain-launch sets on one host; in a file
// that the user names; or in a file in the run folder, which rank 0 writes for the others.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "base/token.h"
#include "launch/job.h"

namespace mtrain::launch {

constexpr const char* kTokenVariable = "MTRAIN_TOKEN";

// Removes the variable from this process's environment: processes that it starts must not inherit
// the secret. Call it while the process has one thread, and after its last re-execution.
void hide_token_variable();

// Reads a user's file of 64 hexadecimal digits. Throws UserError if it is not a regular file of
// this user that nobody else can read.
Token read_token_file(const std::filesystem::path& path);

// Reads the first line of a user's file with a password, which must be as private as a token file.
std::string read_password_file(const std::filesystem::path& path);

// Removes the shared file that this process has made, if there is one. Async-signal-safe: for a
// signal handler that ends the process.
void remove_own_token_file() noexcept;

// While it lives, a signal of end_signals.h that would end this process removes that file first.
class TokenFileGuard {
 public:
  TokenFileGuard();
  ~TokenFileGuard();
  TokenFileGuard(const TokenFileGuard&) = delete;
  TokenFileGuard& operator=(const TokenFileGuard&) = delete;
};

class JobToken {
 public:
  // `shared` is the file in which rank 0 passes the token to the others if the user names none.
  // Rank 0 makes it, and the destructor removes it. The file of a killed job is replaced. Throws
  // UserError if a token is not valid, or if the file cannot be made or belongs to a running job.
  // `replaces`: the file is replaced after a moment even if another process of the job still has
  // it.
  JobToken(const Job& job, std::filesystem::path shared, bool replaces = false);
  ~JobToken();
  JobToken(const JobToken&) = delete;
  JobToken& operator=(const JobToken&) = delete;

  // Returns nothing while rank 0 has not written the file.
  std::optional<Token> find() const;
  // Whether find() reads the shared file, which may still have an earlier job's token.
  bool is_shared() const { return !token_; }
  static std::string hint();  // the three ways

 private:
  void make_shared_file(const Job& job, bool replaces);
  bool write_shared_file();
  void remove_shared_file();

  const std::filesystem::path shared_;
  std::optional<Token> token_;  // unless it must be read from shared_
  int lock_ = -1;               // rank 0's file, which it has locked
};

}  // namespace mtrain::launch
