#include "base/shared_library.h"

#include <dlfcn.h>

#include <utility>

namespace mtrain {

SharedLibrary::SharedLibrary(std::string file)
    : file_(std::move(file)), handle_(dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) problem_ = dlerror();
}

void* SharedLibrary::symbol(const char* name) {
  if (!handle_) return nullptr;
  void* const found = dlsym(handle_, name);
  if (!found && problem_.empty()) problem_ = file_ + " has no " + name;
  return found;
}

}  // namespace mtrain
