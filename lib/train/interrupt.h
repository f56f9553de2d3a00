// SIGINT, SIGTERM and SIGHUP (the terminal is gone) ask a run to finish its step, save and end
// well; a second one ends it at once.
#pragma once

namespace mtrain {

class Interrupt {
 public:
  Interrupt();   // takes over these signals; SIGHUP only where nohup has not turned it off
  ~Interrupt();  // and gives them back
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  int signal() const;  // the one received, 0 before
};

}  // namespace mtrain
