#include "base/bus_errors.h"

#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

namespace mtrain {

namespace {

// The handler reads the list without a lock. Entries are therefore reused, and never freed.
struct Mapping {
  std::atomic<uintptr_t> begin = 0;  // 0: free
  std::atomic<size_t> bytes = 0;
  std::string message;  // the text that the handler writes; changes only while the entry is free
  Mapping* next = nullptr;
};
std::atomic<Mapping*> mappings{nullptr};
std::mutex changes;
std::atomic<void (*)(const char*)> teller{nullptr};
struct sigaction before {};  // the handler of faults that are not in a mapping of a file

void write_all(const char* text) {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t n = ::write(STDERR_FILENO, text, left);
    if (n <= 0) return;
    text += n;
    left -= size_t(n);
  }
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto at = uintptr_t(info->si_addr);
  for (const Mapping* m = mappings; m; m = m->next) {
    const uintptr_t begin = m->begin;
    if (begin == 0 || at < begin || at - begin >= m->bytes) continue;
    if (const auto tell = teller.load()) tell(m->message.c_str());
    write_all("mtrain: error: ");
    write_all(m->message.c_str());
    write_all("\n");
    ::_exit(1);
  }
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  // Returning repeats the fault, which now ends the process.
  std::signal(SIGBUS, SIG_DFL);
}

}  // namespace

void remember_mapping(const void* begin, size_t bytes, const std::filesystem::path& path) {
  const std::lock_guard lock(changes);
  Mapping* m = mappings;
  while (m && m->begin != 0) m = m->next;
  const bool is_new = !m;
  if (is_new) m = new Mapping;
  m->message = "cannot read " + path.string() +
               ": the file has become shorter since it was opened, or its disk failed\n  hint: do "
               "not change files while a run reads them; copy this file again";
  m->bytes = bytes;
  m->begin = uintptr_t(begin);
  if (!is_new) return;
  m->next = mappings;
  mappings = m;
}

void forget_mapping(const void* begin) {
  const std::lock_guard lock(changes);
  for (Mapping* m = mappings; m; m = m->next)
    if (m->begin == uintptr_t(begin)) m->begin = 0;
}

void name_bus_errors(void (*tell)(const char* message)) {
  teller = tell;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  struct sigaction present {};
  sigaction(SIGBUS, &action, &present);
  if (present.sa_sigaction != on_bus_error) before = present;
}

}  // namespace mtrain
