// Preloaded by a test: a file system that fails. The file that MTRAIN_FAILING_FILES names has the
// faults, one in a line:
//   <calls> <number of the error> <part of the path> [<rank>]
// <calls> has a letter for each kind of call that fails: o opens a file, c creates one, m makes a
// folder, w writes, r reads, n renames, d deletes, s asks for its size or kind. With -1 as its
// number the call does not fail: it waits as long as the file has the line. With -2 it takes 0.2 s
// longer. A test changes the file while programs run; without the file nothing fails.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// Returns the number of this call's fault; 0: none. Calls the kernel, since the functions below are
// replaced.
static int listed_fault(char call, const char* path) {
  const char *list = getenv("MTRAIN_FAILING_FILES"), *own = getenv("RANK");
  char text[4096] = "", calls[16], part[512], rank[16];
  if (!list || !path || strcmp(path, list) == 0) return 0;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, list, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const long n = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  text[n > 0 ? n : 0] = 0;
  char* rest = NULL;
  for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    int error = 0;
    const int fields = sscanf(line, "%15s %d %511s %15s", calls, &error, part, rank);
    if (fields < 3 || !strchr(calls, call) || !strstr(path, part)) continue;
    if (fields == 3 || (own && strcmp(own, rank) == 0)) return error;
  }
  return 0;
}

// Returns the error of this call, after a wait if there is one; 0: none.
static int fault(char call, const char* path) {
  const struct timespec pause = {0, 20 * 1000 * 1000}, slow = {0, 200 * 1000 * 1000};
  int error = 0;
  while ((error = listed_fault(call, path)) == -1) nanosleep(&pause, NULL);
  if (error != -2) return error;
  nanosleep(&slow, NULL);
  return 0;
}

static int fault_of_fd(char call, int fd) {
  char link[64], path[PATH_MAX] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) < 0) return 0;
  return fault(call, path);
}

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL_IF(expression)         \
  do {                              \
    const int error = (expression); \
    if (error) {                    \
      errno = error;                \
      return -1;                    \
    }                               \
  } while (0)

#define OPEN(name)                                    \
  int name(const char* path, int flags, ...) {        \
    va_list list;                                     \
    va_start(list, flags);                            \
    const mode_t mode = (mode_t)va_arg(list, int);    \
    va_end(list);                                     \
    NEXT(name);                                       \
    FAIL_IF(fault(flags& O_CREAT ? 'c' : 'o', path)); \
    return next(path, flags, mode);                   \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    va_list list;                                          \
    va_start(list, flags);                                 \
    const mode_t mode = (mode_t)va_arg(list, int);         \
    va_end(list);                                          \
    NEXT(name);                                            \
    FAIL_IF(fault(flags& O_CREAT ? 'c' : 'o', path));      \
    return next(folder, path, flags, mode);                \
  }
OPENAT(openat)
OPENAT(openat64)
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  FAIL_IF(fault('m', path));
  return next(path, mode);
}
#define STAT(name)                                  \
  int name(const char* path, struct name* status) { \
    NEXT(name);                                     \
    FAIL_IF(fault('s', path));                      \
    return next(path, status);                      \
  }
STAT(stat)
STAT(stat64)
int rename(const char* from, const char* to) {
  NEXT(rename);
  FAIL_IF(fault('n', from));
  return next(from, to);
}
int unlinkat(int folder, const char* path, int flags) {
  NEXT(unlinkat);
  FAIL_IF(fault('d', path));
  return next(folder, path, flags);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  NEXT(write);
  FAIL_IF(fault_of_fd('w', fd));
  return next(fd, data, bytes);
}
ssize_t read(int fd, void* data, size_t bytes) {
  NEXT(read);
  FAIL_IF(fault_of_fd('r', fd));
  return next(fd, data, bytes);
}
#define PREAD(name)                                            \
  ssize_t name(int fd, void* data, size_t bytes, off64_t at) { \
    NEXT(name);                                                \
    FAIL_IF(fault_of_fd('r', fd));                             \
    return next(fd, data, bytes, at);                          \
  }
PREAD(pread)
PREAD(pread64)
#define PWRITE(name)                                                 \
  ssize_t name(int fd, const void* data, size_t bytes, off64_t at) { \
    NEXT(name);                                                      \
    FAIL_IF(fault_of_fd('w', fd));                                   \
    return next(fd, data, bytes, at);                                \
  }
PWRITE(pwrite)
PWRITE(pwrite64)
