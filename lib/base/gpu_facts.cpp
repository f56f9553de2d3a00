#include "base/gpu_facts.h"

#include <cctype>
#include <string>

#include "base/strings.h"

namespace mtrain {
namespace {

// Whether the word stands in the text by itself: h200 does not in "gh200" or "h2000".
bool has_word(const std::string& text, std::string_view word) {
  const auto continues = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if (!(at > 0 && continues(at - 1)) && !continues(at + word.size())) return true;
  return false;
}

}  // namespace

const GpuFacts* find_gpu(std::string_view device_name) {
  const std::string name = to_lower(device_name);
  for (const GpuFacts& f : kGpuFacts)
    if (has_word(name, enum_name(f.gpu))) return &f;
  return nullptr;
}

double rated_flops(std::string_view device_name, DType dtype) {
  const GpuFacts* f = find_gpu(device_name);
  if (!f) return 0;
  const std::string name = to_lower(device_name);
  for (const char* slower : {"mig", "pcie", "nvl"})
    if (has_word(name, slower)) return 0;
  return f->flops(dtype);
}

}  // namespace mtrain
