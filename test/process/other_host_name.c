// Makes a process believe that its host has the name in MTRAIN_TEST_HOST: agents of several hosts can then run on one machine.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int gethostname(char* name, size_t bytes) {
  const char* other = getenv("MTRAIN_TEST_HOST");
  if (!other) {
    int (*real)(char*, size_t) = (int (*)(char*, size_t))dlsym(RTLD_NEXT, "gethostname");
    return real(name, bytes);
  }
  if (strlen(other) >= bytes) return -1;
  strcpy(name, other);
  return 0;
}
