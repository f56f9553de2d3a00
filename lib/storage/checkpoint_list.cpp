#include "storage/checkpoint_list.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "storage/checkpoint_dir.h"
#include "storage/file_sums.h"
#include "storage/folder_measure.h"
#include "storage/read_mark.h"
#include "storage/temporary_checkpoint.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

using State = ListedCheckpoint::State;

// Checks a folder that has the name of a checkpoint.
void check_listed(ListedCheckpoint& c) {
  try {
    if (!complete_checkpoint(c.path)) throw RunError("it has no files of a checkpoint");
  } catch (const DamagedFile& e) {
    c.state = State::damaged, c.fault = e.message();
  } catch (const Error& e) {
    c.state = State::unreadable, c.fault = e.message();
  }
}

}  // namespace

std::vector<ListedCheckpoint> listed_checkpoints(const fs::path& root) {
  std::vector<ListedCheckpoint> all;
  // Read first: a run that saves meanwhile may name a checkpoint that the list does not have yet.
  const NamedSteps named = named_steps(root);
  std::error_code error;
  fs::directory_iterator it(root, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const int64_t step = parse_step(name.substr(0, name.find('.')));
    if (step < 0) continue;
    ListedCheckpoint c{.path = it->path(), .step = step};
    const ReadMark reading(c.path);
    if (is_temporary_checkpoint(name))
      c.state = State::temporary;
    else if (parse_step(name) < 0)
      c.state = State::set_aside;
    else
      check_listed(c);
    const FolderMeasure measured = measure_folder(c.path);
    c.bytes = measured.bytes, c.saved_at = measured.newest;
    if (c.state == State::complete) c.validation_loss = validation_loss(c.path);
    all.push_back(std::move(c));
  }
  if (error) throw RunError(fmt::format("cannot list {}: {}", root.string(), error.message()));
  std::ranges::sort(all, [](const auto& a, const auto& b) {
    return std::tie(a.step, a.state, a.path) < std::tie(b.step, b.state, b.path);
  });
  for (ListedCheckpoint& c : all) {
    if (c.state != State::complete) continue;
    c.latest = named.latest == c.step, c.best = named.best == c.step;
  }
  return all;
}

}  // namespace mtrain::storage
