// The launcher's handling of a rank's output.
#pragma once
#include <memory>
#include <string>

#include "launch/log_file.h"
#include "launch/output_stream.h"

namespace mtrain::launch {

// One stream of one rank. The launcher always reads it immediately, even if the launcher's own
// output is not read.
class RankOutput {
 public:
  struct Ends {
    int launcher = -1, rank = -1;
  };
  static Ends pipe();  // throws RunError
  // Makes a terminal of the size of `terminal`; the rank then draws as on that one. Both ends are
  // -1 if the system has no more terminals.
  static Ends terminal(int terminal);

  // Takes the launcher's end. `show` may be null. Without a prefix, text is forwarded immediately,
  // otherwise in complete lines.
  RankOutput(int fd, OutputStream* show, std::string prefix, std::unique_ptr<LogFile> file,
             OutputStream& complaints);
  RankOutput(RankOutput&& other) noexcept;
  RankOutput& operator=(RankOutput&&) = delete;
  ~RankOutput();

  int fd() const { return fd_; }
  bool pump();                      // forwards text that has arrived; false: the output has ended
  void drain();                     // forwards all text that has arrived, without waiting for more
  void resize(int terminal) const;  // call it when the terminal's size has changed

 private:
  void flush();

  int fd_;
  OutputStream* show_;
  std::string prefix_, line_;
  std::unique_ptr<LogFile> file_;
  OutputStream* complaints_;
};

}  // namespace mtrain::launch
