// The messages of a run about its early end.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace mtrain::run {

// The activity of a run when a signal arrives.
enum class Doing { starting, step, step_done, evaluation, save, ending };

// Returns "Ctrl-C: step 120 ends first, then the run is saved. Again: end without saving." `step`
// is the current or the last step. `saves`: the run saves a checkpoint when it ends.
std::string answer_to_signal(const std::string& signal, Doing doing, int64_t step, bool saves);

// Returns what a run that ends immediately has not saved: "steps 3 to 7 are lost; ... is the last
// checkpoint". `saved` is the step of that checkpoint; an empty path: there is none.
std::string unsaved_text(int64_t saved, int64_t steps_done,
                         const std::filesystem::path& checkpoint);

// Returns "saving step 1000 (1.2 of 3.4 GiB)" for the activity "saving step 1000".
std::string bytes_text(const std::string& activity, int64_t done, int64_t total);

// Returns "reading weights 34 %" for the activity "reading weights".
std::string percent_text(const std::string& activity, int64_t done, int64_t total);

}  // namespace mtrain::run
