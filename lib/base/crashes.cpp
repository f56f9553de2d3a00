#include "base/crashes.h"

#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>

namespace mtrain {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGABRT};
constexpr int kMaxFrames = 64, kMaxModules = 512;

// A range of addresses of the program or of a library.
struct Module {
  uintptr_t begin = 0, end = 0, base = 0;
  char name[104] = {};
};

// What the handler needs is made before, since it may not allocate. The process has one handler.
struct Crashes {
  std::atomic<void (*)(const char*)> write{nullptr};
  struct sigaction before[std::size(kSignals)] = {};
  std::atomic_flag entered;
  Module modules[kMaxModules];
  int module_count = 0;
  char reason[512] = {};  // of std::terminate
  alignas(16) char stack[1 << 16];
};
Crashes& crashes() {
  static Crashes all;
  return all;
}

// A text of bounded length, without allocations.
class CrashText {
 public:
  CrashText& operator<<(std::string_view text) {
    const size_t bytes = std::min(text.size(), sizeof text_ - 1 - size_);
    std::memcpy(text_ + size_, text.data(), bytes);
    text_[size_ += bytes] = 0;
    return *this;
  }
  CrashText& number(uint64_t n, unsigned base) {
    char digits[24];
    size_t at = sizeof digits;
    do {
      digits[--at] = "0123456789abcdef"[n % base];
      n /= base;
    } while (n > 0);
    return *this << std::string_view(digits + at, sizeof digits - at);
  }
  const char* c_str() const { return text_; }
  std::string_view view() const { return {text_, size_}; }

 private:
  char text_[12000] = {};
  size_t size_ = 0;
};

void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(size_t(n));
  }
}

// Reads /proc/self/maps line by line, without allocations.
class MapsReader {
 public:
  MapsReader() : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MapsReader() {
    if (fd_ >= 0) ::close(fd_);
  }
  // Returns a line, which is valid until the next call; an empty one at the end.
  std::string_view next() {
    if (fd_ < 0) return {};
    while (true) {
      const std::string_view rest(buffer_ + begin_, end_ - begin_);
      const size_t length = rest.find('\n');
      if (length != std::string_view::npos) {
        begin_ += length + 1;
        return rest.substr(0, length + 1);
      }
      std::memmove(buffer_, rest.data(), rest.size());
      begin_ = 0, end_ = rest.size();
      const ssize_t n = ::read(fd_, buffer_ + end_, sizeof buffer_ - end_);
      if (n <= 0) return {};
      end_ += size_t(n);
    }
  }

 private:
  const int fd_;
  size_t begin_ = 0, end_ = 0;
  char buffer_[8192];
};

// Takes a hexadecimal number off the begin of a text.
uintptr_t take_hex(std::string_view& text) {
  uintptr_t n = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    if (c >= '0' && c <= '9')
      n = n * 16 + uintptr_t(c - '0');
    else if (c >= 'a' && c <= 'f')
      n = n * 16 + uintptr_t(c - 'a' + 10);
    else
      break;
  }
  return n;
}

// Finds the module of an address in a library that was loaded after report_crashes(). The kernel
// lists the parts of a library in order, and the first one begins at its base.
bool find_later_module(uintptr_t at, Module& found) {
  MapsReader maps;
  found.name[0] = 0;
  for (std::string_view line = maps.next(); !line.empty(); line = maps.next()) {
    std::string_view rest = line.substr(0, line.size() - 1);
    const uintptr_t begin = take_hex(rest);
    rest.remove_prefix(std::min<size_t>(rest.size(), 1));  // "-"
    const uintptr_t end = take_hex(rest);
    const size_t path = rest.find('/');
    if (path == std::string_view::npos) {
      found.name[0] = 0;
      continue;
    }
    // A long path keeps its end.
    std::string_view name = rest.substr(path);
    if (name.size() >= sizeof found.name) name.remove_prefix(name.size() - sizeof found.name + 1);
    if (name != found.name) {
      std::memcpy(found.name, name.data(), name.size());
      found.name[name.size()] = 0;
      found.base = begin;
    }
    if (at >= begin && at < end) return true;
  }
  return false;
}

void add_frames(CrashText& text) {
  void* frames[kMaxFrames];
  const int count = ::backtrace(frames, kMaxFrames);
  const Crashes& all = crashes();
  // The first two frames are this function and the handler.
  for (int i = 2; i < count; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(frames[i]);
    const Module* const end = all.modules + all.module_count;
    const Module* m = std::find_if(all.modules, end, [&](const Module& module) {
      return at >= module.begin && at < module.end;
    });
    text << "\n  at ";
    Module later;
    if (m == end && find_later_module(at, later)) m = &later;
    if (m == end)
      (text << "0x").number(at, 16);
    else
      (text << m->name << "+0x").number(at - m->base, 16);
  }
}

void describe_crash(CrashText& text, int signal, const siginfo_t& info) {
  const Crashes& all = crashes();
  if (signal == SIGABRT && all.reason[0]) {
    text << all.reason;
    return;
  }
  const char* name = ::sigdescr_np(signal);
  (text << "crashed by signal ").number(unsigned(signal), 10) << " (" << (name ? name : "?") << ")";
  if (signal == SIGABRT) return;
  if (info.si_code > 0)
    (text << " at address 0x").number(reinterpret_cast<uintptr_t>(info.si_addr), 16);
  else
    (text << ", which process ").number(uint64_t(info.si_pid), 10) << " has sent";
}

void on_crash(int signal, siginfo_t* info, void*) {
  Crashes& all = crashes();
  if (all.entered.test_and_set()) {
    // Another thread reports its crash, and then ends the process.
    const timespec patience{.tv_sec = 5, .tv_nsec = 0};
    ::nanosleep(&patience, nullptr);
  } else {
    static CrashText text;
    describe_crash(text, signal, *info);
    add_frames(text);
    if (const auto write = all.write.load()) write(text.c_str());
    write_to_stderr("mtrain: error: ");
    write_to_stderr(text.view());
    write_to_stderr("\n");
  }
  // Returning repeats a fault, which the earlier handler then gets; a signal that was sent is sent
  // again.
  const auto which = std::ranges::find(kSignals, signal) - std::begin(kSignals);
  ::sigaction(signal, &all.before[which], nullptr);
  if (info->si_code <= 0) ::raise(signal);
}

// Keeps the reason for the handler of SIGABRT. Not a handler of a signal: it may allocate.
[[noreturn]] void on_terminate() {
  CrashText text;
  text << "std::terminate was called";
  if (const std::exception_ptr failure = std::current_exception()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& e) {
      text << ": nothing has caught " << e.what();
    } catch (...) {
      text << ": nothing has caught an exception of an unknown type";
    }
  }
  const std::string_view kept = text.view().substr(0, sizeof crashes().reason - 1);
  std::memcpy(crashes().reason, kept.data(), kept.size());
  std::abort();
}

int add_module(dl_phdr_info* info, size_t, void*) {
  Crashes& all = crashes();
  if (all.module_count == kMaxModules) return 1;
  Module& m = all.modules[all.module_count++];
  m.begin = UINTPTR_MAX;
  m.base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    m.begin = std::min<uintptr_t>(m.begin, m.base + part.p_vaddr);
    m.end = std::max<uintptr_t>(m.end, m.base + part.p_vaddr + part.p_memsz);
  }
  std::string name = info->dlpi_name;
  if (name.empty()) {
    char path[4096];
    const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    name.assign(path, n > 0 ? size_t(n) : 0);
  }
  // A long path keeps its end.
  if (name.size() >= sizeof m.name) name = name.substr(name.size() - sizeof m.name + 1);
  std::memcpy(m.name, name.c_str(), name.size() + 1);
  return 0;
}

}  // namespace

void report_crashes(void (*write)(const char* text)) {
  Crashes& all = crashes();
  all.write = write;
  all.module_count = 0;
  ::dl_iterate_phdr(add_module, nullptr);
  // The first call loads a library, which the handler must not do.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  // A stack that overflows leaves no room for its handler.
  stack_t current{};
  if (::sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE)) {
    const stack_t own{.ss_sp = all.stack, .ss_flags = 0, .ss_size = sizeof all.stack};
    ::sigaltstack(&own, nullptr);
  }
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kSignals); ++i)
    ::sigaction(kSignals[i], &action, &all.before[i]);
  std::set_terminate(on_terminate);
}

}  // namespace mtrain
