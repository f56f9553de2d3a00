#include "run/save_failures.h"

namespace mtrain::run {

std::string SaveFailures::failed(const Error& error, int64_t step, bool last,
                                 const std::string& newest) {
  ++in_row_;
  const std::string what = fmt::format("step {} is not saved: {}", step, error.message());
  const std::string left =
      newest.empty() ? "nothing is saved yet" : "the newest checkpoint is " + newest;
  const char* why = last                    ? "no later save can make up for it"
                    : stop_                 ? "checkpoint.on_error is stop"
                    : in_row_ >= kMostInRow ? "the third failure in a row"
                                            : nullptr;
  if (why)
    throw RunError(fmt::format("{} ({}; {})", what, why, left),
                   error.hint().empty() ? "make checkpoint.dir writable, then continue with "
                                          "checkpoint.load=latest"
                                        : error.hint());
  return fmt::format("{}; training continues, and {}{}", what, left,
                     in_row_ + 1 >= kMostInRow ? "; one more failure in a row ends the run" : "");
}

}  // namespace mtrain::run
