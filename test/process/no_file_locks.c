// Preloaded by a test: a file system without locks, as NFS mounted with nolock is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

static int forward(const char* name, int fd, int command, void* argument) {
  int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
  if (command == F_OFD_SETLK || command == F_OFD_SETLKW) {
    errno = ENOLCK;
    return -1;
  }
  return next(fd, command, argument);
}

#define FORWARD(name)                             \
  int name(int fd, int command, ...) {            \
    va_list list;                                 \
    va_start(list, command);                      \
    void* argument = va_arg(list, void*);         \
    va_end(list);                                 \
    return forward(#name, fd, command, argument); \
  }
FORWARD(fcntl)
FORWARD(fcntl64)
