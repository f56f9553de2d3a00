// The launcher's own output.
#pragma once
#include <optional>
#include <string>

#include "launch/output_stream.h"

namespace mtrain::launch {

// Begins a line of the launcher. On a terminal the first rank may have drawn a line without a line
// feed; this removes it.
std::string line_begin(int fd);

class Console {
 public:
  Console();
  // Whether both streams are the same terminal, pipe or file. One thread then writes to it, in
  // order.
  const bool one_stream;
  OutputStream& out() { return out_; }
  OutputStream& err() { return err_ ? *err_ : out_; }
  void say(const std::string& text);  // as lines of stderr

 private:
  OutputStream out_;
  std::optional<OutputStream> err_;
};

}  // namespace mtrain::launch
