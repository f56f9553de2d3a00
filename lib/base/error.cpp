#include "base/error.h"

#include <string_view>

namespace mtrain {

void throw_bug(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view name(file);
  for (std::string_view top : {"/lib/", "/kernels/", "/apps/", "/test/"}) {
    if (auto at = name.rfind(top); at != std::string_view::npos) {
      name.remove_prefix(at + 1);
      break;
    }
  }
  throw BugError(fmt::format("{}:{}: check `{}` failed{}{}", name, line, condition,
                             message.empty() ? "" : ": ", message));
}

}  // namespace mtrain
