// This program's operator new, whose exception says how many bytes the system has refused.
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

class Refused : public std::bad_alloc {
 public:
  explicit Refused(std::size_t bytes) {
    std::snprintf(text_, sizeof text_, "%zu bytes were refused", bytes);
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[48];  // no allocation may be needed to report one that has failed
};

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (!memory) throw Refused(bytes);
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
