#include "launch/console.h"

#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>

namespace mtrain::launch {

namespace {

bool same_file(int a, int b) {
  struct stat x, y;
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

}  // namespace

std::string line_begin(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) && term && std::strcmp(term, "dumb") != 0 ? "\r\x1b[K" : "";
}

Console::Console() : one_stream(same_file(STDOUT_FILENO, STDERR_FILENO)), out_(STDOUT_FILENO) {
  if (!one_stream) err_.emplace(STDERR_FILENO);
}

void Console::say(const std::string& text) {
  err().write(line_begin(STDERR_FILENO) + err().fit(text) + "\n");
}

}  // namespace mtrain::launch
