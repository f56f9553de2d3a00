// Runs a function in a child process whose system calls the test follows.
#pragma once
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include <catch2/catch.hpp>

namespace mtrain {

struct SystemCall {
  pid_t pid;
  uint64_t number, first;  // the call (SYS_*), and its first argument

  // Whether the call can change the disk.
  bool changes_files() const {
    for (const uint64_t changing :
         {SYS_openat, SYS_write, SYS_pwrite64, SYS_fsync, SYS_close, SYS_ftruncate, SYS_renameat,
          SYS_renameat2, SYS_unlinkat, SYS_mkdirat, SYS_linkat, SYS_rename, SYS_unlink, SYS_rmdir,
          SYS_mkdir, SYS_symlink, SYS_symlinkat})
      if (number == changing) return true;
    return false;
  }
  // Returns the path of the file that the first argument describes.
  std::string file() const {
    std::error_code error;
    return std::filesystem::read_symlink(
        "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(first), error);
  }
};

// Calls `body` in a child, and `before` before each of its system calls. If `before` returns false,
// the child is killed at that call. Returns whether that happened. The test fails on a machine
// where a process may not trace its child.
inline bool traced(const std::function<void()>& body,
                   const std::function<bool(const SystemCall&)>& before) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(8);
    ::raise(SIGSTOP);
    try {
      body();
    } catch (...) {
      ::_exit(9);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSTOPPED(status));  // otherwise tracing is not allowed
  REQUIRE(::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) ==
          0);
  while (true) {
    REQUIRE(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
      REQUIRE(WEXITSTATUS(status) == 0);
      return false;
    }
    REQUIRE(WIFSTOPPED(status));
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    __ptrace_syscall_info info{};
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) > 0);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
    if (before({child, info.entry.nr, info.entry.args[0]})) continue;
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, &status, 0) == child);
    return true;
  }
}

}  // namespace mtrain
