// `mtrain calibrate --from-rows`: fits constants to published speeds.
#pragma once
#include <memory>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace mtrain {

struct RowOptions {
  std::string rows, models, gpu, stack, kind = "all";
  bool judge = false;  // the search, by the rows' layouts
};

// Adds the options to the command. The fit is asked for if `rows` is given.
std::shared_ptr<RowOptions> add_row_options(CLI::App& command);
// Prints all rows with their predictions, and writes the stack file `output`. Then judges the
// search by the rows' layouts, if asked for. Throws UserError for wrong options and files.
void calibrate_from_rows(const RowOptions& options, const std::string& output);

}  // namespace mtrain
