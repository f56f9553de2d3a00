// What a run says about its early end.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace mtrain::run {

// What a run is at when a signal comes.
enum class Doing { starting, step, evaluation, save, ending };

// Returns "Ctrl-C: step 120 ends first, then the run is saved. Again: end without saving." `step`
// is the present or the last step, and `saves` says whether the run saves when it ends.
std::string answer_to_signal(const std::string& signal, Doing doing, int64_t step, bool saves);

// Returns what a run that ends at once has not saved: "steps 3 to 7 are lost; ... is the last
// checkpoint". `saved` is the step of that checkpoint; an empty path: there is none.
std::string unsaved_text(int64_t saved, int64_t steps_done,
                         const std::filesystem::path& checkpoint);

// Returns "saving step 1000 (1.2 of 3.4 GiB)" for the activity "saving step 1000".
std::string bytes_text(const std::string& activity, int64_t done, int64_t total);

}  // namespace mtrain::run
