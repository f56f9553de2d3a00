// A rank's output on its way through the launcher.
#pragma once
#include <filesystem>
#include <string>

#include "launch/output_stream.h"

namespace mtrain::launch {

// A file that receives a rank's output as it is. Its folder exists.
class LogFile {
 public:
  explicit LogFile(std::filesystem::path path);
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;
  // Returns why it could not be written; empty if it was, or if an earlier call has said so.
  std::string write(std::string_view text);

 private:
  std::filesystem::path path_;
  int fd_;
};

// One stream of one rank. The launcher reads it at once, whoever reads the launcher's own output.
class RankOutput {
 public:
  struct Ends {
    int launcher = -1, rank = -1;
  };
  static Ends pipe();  // throws RunError
  // A terminal of the size of `terminal`, so that the rank draws as if it had that one. Both ends
  // are -1 if the system has no more terminals.
  static Ends terminal(int terminal);

  // Takes the launcher's end. `show` may be null. Without a prefix text is passed on as it comes,
  // otherwise in whole lines.
  RankOutput(int fd, OutputStream* show, std::string prefix, std::unique_ptr<LogFile> file,
             OutputStream& complaints);
  RankOutput(RankOutput&& other) noexcept;
  RankOutput& operator=(RankOutput&&) = delete;
  ~RankOutput();

  int fd() const { return fd_; }
  bool pump();                      // passes on what has arrived; false: the output has ended
  void drain();                     // passes on all that has arrived, without waiting for more
  void resize(int terminal) const;  // the terminal has another size now

 private:
  void flush();

  int fd_;
  OutputStream* show_;
  std::string prefix_, line_;
  std::unique_ptr<LogFile> file_;
  OutputStream* complaints_;
};

}  // namespace mtrain::launch
