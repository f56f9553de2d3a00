#include "run/end_texts.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::run {

std::string answer_to_signal(const std::string& signal, Doing doing, int64_t step, bool saves) {
  const char* then = saves ? ", then the run is saved. Again: end without saving."
                           : ", then the run. It is not saved (checkpoint.at_end). Again: end at "
                             "once.";
  switch (doing) {
    case Doing::starting:
      return fmt::format("{}: the run ends when it has started. Again: end at once.", signal);
    case Doing::step: return fmt::format("{}: step {} ends first{}", signal, step, then);
    case Doing::evaluation:
      return fmt::format("{}: the evaluation after step {} ends first{}", signal, step, then);
    case Doing::save:
      return fmt::format(
          "{}: step {} is saved first, then the run ends. Again: end without saving.", signal,
          step);
    case Doing::ending: return fmt::format("{}: the run is ending. Again: end at once.", signal);
  }
  throw BugError("what a run does");
}

std::string unsaved_text(int64_t saved, int64_t steps_done,
                         const std::filesystem::path& checkpoint) {
  const bool none = checkpoint.empty();
  if (steps_done <= saved)
    return none ? "no step was done" : fmt::format("all steps are in {}", checkpoint.string());
  const int64_t first = saved + 1;
  const std::string lost = first == steps_done
                               ? fmt::format("step {} is lost", first)
                               : fmt::format("steps {} to {} are lost", first, steps_done);
  return none ? lost + "; there is no checkpoint"
              : fmt::format("{}; the last checkpoint is {}", lost, checkpoint.string());
}

std::string bytes_text(const std::string& activity, int64_t done, int64_t total) {
  const std::string all = human_bytes(double(total));
  const size_t blank = all.find(' ');
  const double unit = std::max(1.0, double(total) / std::max(std::atof(all.c_str()), 1.0));
  return fmt::format("{} ({:.1f} of {:.1f} {})", activity, double(done) / unit,
                     double(total) / unit, all.substr(blank + 1));
}

}  // namespace mtrain::run
