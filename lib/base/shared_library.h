// A library that is loaded when it is first needed, and stays loaded until the process ends. A
// missing library or function is recorded as a text: the caller decides whether to continue without
// it or to fail.
#pragma once
#include <string>

namespace mtrain {

class SharedLibrary {
 public:
  // Loads `file` from the system's folders or LD_LIBRARY_PATH. Its symbols are not visible to other
  // libraries.
  explicit SharedLibrary(std::string file);

  // Sets `function` to the function of this name, or to null if the library or the function is
  // missing.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // Returns "" if the library is loaded and find() has found every function so far; else what is
  // missing.
  const std::string& problem() const { return problem_; }
  void* handle() const { return handle_; }  // for dlsym; null if it is not loaded

 private:
  void* symbol(const char* name);

  const std::string file_;
  void* const handle_;
  std::string problem_;
};

}  // namespace mtrain
