// A library that is loaded when it is first needed, and stays for the process's life. What lacks is
// kept as text: its users decide whether to go without, or to fail.
#pragma once
#include <string>

namespace mtrain {

class SharedLibrary {
 public:
  // By its file's name, in the system's folders and LD_LIBRARY_PATH. Its symbols stay its own.
  explicit SharedLibrary(std::string file);

  // Null where the library or the function is not there.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // "" where it is loaded and has had all that was looked for.
  const std::string& problem() const { return problem_; }

 private:
  void* symbol(const char* name);

  const std::string file_;
  void* const handle_;
  std::string problem_;
};

}  // namespace mtrain
