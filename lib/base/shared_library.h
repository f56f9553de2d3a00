// A library that is loaded when it is first needed, and stays loaded for the process's life. What
// is missing is kept as a text: users of the library decide whether to do without it, or to fail.
#pragma once
#include <string>

namespace mtrain {

class SharedLibrary {
 public:
  // Loads `file` from the system's folders or LD_LIBRARY_PATH. Other libraries do not see its
  // symbols.
  explicit SharedLibrary(std::string file);

  // Sets `function` to the function of this name, or to null where the library or the function is
  // missing.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // Returns "" where the library is loaded and find() has found every function so far; else what is
  // missing.
  const std::string& problem() const { return problem_; }

 private:
  void* symbol(const char* name);

  const std::string file_;
  void* const handle_;
  std::string problem_;
};

}  // namespace mtrain
