// Event files, which TensorBoard shows: the metrics of a run, and its recipe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/line_file.h"
#include "observe/metrics.h"

namespace mtrain::observe {

// Returns the tag of a metric. TensorBoard shows tags with the same word before the slash together:
// "comm.tp.bytes" is "comm/tp/bytes".
std::string tensorboard_tag(std::string_view metric);

class TensorboardWriter {
 public:
  // Makes a new file in `folder`, which is made if necessary. The file voids what earlier files of
  // the folder have of steps after `steps_done`, since a resumed run repeats these steps.
  // TensorBoard's reader in Python obeys that at once; its other reader replaces a value when the
  // new one arrives. The text of the recipe is shown at `steps_done`. Throws RunError.
  TensorboardWriter(const std::filesystem::path& folder, int64_t steps_done,
                    std::string_view recipe);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // Writes the numbers of a record of metrics.jsonl, rounded to 32 bits, by a single system call.
  // Adds a histogram of the gradient norms of the last steps after each hundredth step. If the disk
  // is full, events are lost and one warning is logged.
  void write(int64_t step, const std::vector<Metric>& metrics);

 private:
  std::string take_histogram();  // the event of norms_, which it empties

  LineFile file_;
  std::vector<double> norms_;  // of the gradients of steps up to norms_end_
  int64_t norms_end_ = 0;
};

}  // namespace mtrain::observe
