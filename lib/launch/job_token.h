// The secret by which the ranks of a job know each other, and the three ways by which a rank gets
// it: the variable MTRAIN_TOKEN, which mtrain-launch sets on one host; a file that the user names;
// or a file in the run folder, which rank 0 writes for the others.
#pragma once
#include <filesystem>
#include <optional>

#include "base/token.h"
#include "launch/job.h"

namespace mtrain::launch {

constexpr const char* kTokenVariable = "MTRAIN_TOKEN";

// Removes the variable from this process's environment, so that processes that it starts do not
// inherit the secret. Call it while the process has one thread, and once nothing starts it anew.
void hide_token_variable();

// Reads a user's file of 64 hexadecimal digits. Throws UserError if it is not a regular file of
// this user that nobody else can read.
Token read_token_file(const std::filesystem::path& path);

class JobToken {
 public:
  // `shared` is the file through which rank 0 gives the token to the others if the user names none.
  // Rank 0 makes it, and the destructor removes it; one that a killed job has left is replaced.
  // Throws UserError if a token is not valid, or the file cannot be made or is of a job that lives.
  JobToken(const Job& job, std::filesystem::path shared);
  ~JobToken();
  JobToken(const JobToken&) = delete;
  JobToken& operator=(const JobToken&) = delete;

  // Returns nothing while rank 0 has not written the file.
  std::optional<Token> find() const;
  // Whether find() reads the shared file, in which an earlier job's token may still be.
  bool is_shared() const { return !token_; }
  static std::string hint();  // the three ways

 private:
  void make_shared_file(const Job& job);
  bool write_shared_file();
  void remove_shared_file();

  const std::filesystem::path shared_;
  std::optional<Token> token_;  // unless it must be read from shared_
  int lock_ = -1;               // rank 0's file, which it has locked
};

}  // namespace mtrain::launch
