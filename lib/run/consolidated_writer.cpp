#include "run/consolidated_writer.h"

#include <chrono>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "interchange/export.h"

namespace mtrain::run {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "hf";

// Removes the leftovers of an export to `output` whose process died.
void remove_leftovers(const fs::path& output) {
  const std::string begin = output.filename().string() + ".tmp-";
  std::vector<fs::path> left;
  std::error_code error;
  fs::directory_iterator it(output.parent_path(), error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(begin)) left.push_back(it->path());
  for (const fs::path& folder : left) fs::remove_all(folder, error);
}

std::string describe(const fs::path& output, const interchange::Exported& done) {
  return fmt::format("saved {} for transformers ({}, {} in {} file{})", output.string(),
                     done.model_type, human_bytes(double(done.bytes)), done.files,
                     done.files == 1 ? "" : "s");
}

}  // namespace

ConsolidatedWriter::~ConsolidatedWriter() {
  give_up_ = true;
  if (pending_.valid()) pending_.wait();
}

void ConsolidatedWriter::begin(const fs::path& checkpoint, const std::function<void()>& fault) {
  MT_CHECK(!pending_.valid(), "another checkpoint is being written");
  std::vector<fs::path> missing = std::exchange(unwritten_, {});
  std::error_code error;
  std::erase_if(missing, [&](const fs::path& p) {
    return p == checkpoint || (!fs::exists(p, error) && !error);
  });
  missing.push_back(checkpoint);
  for (const fs::path& p : missing) remove_leftovers(p / kFolder);
  std::erase_if(missing, [&](const fs::path& p) { return fs::exists(p / kFolder, error); });
  if (missing.empty()) return;
  interchange::ExportOptions options;
  options.before_piece = [this, fault] {
    if (fault) fault();
    if (give_up_) throw RunError("the run ended while its checkpoint was written");
  };
  pending_ = std::async(std::launch::async, [this, missing, options] {
    Outcome outcome;
    for (const fs::path& p : missing) {
      const fs::path output = p / kFolder;
      try {
        outcome.lines.push_back(describe(output, interchange::export_hf(p, output, options)));
      } catch (const BugError&) {
        throw;
      } catch (const std::exception& e) {
        outcome.unwritten.push_back(p);
        if (!give_up_)
          log::warn(
              fmt::format("cannot write {} for transformers; the checkpoint itself is "
                          "complete: {}",
                          output.string(), e.what()));
      }
    }
    return outcome;
  });
  if (fault) pending_.wait();
}

bool ConsolidatedWriter::writing() const {
  // The interval of the collective in finish(), in which other ranks wait for this one. It is far
  // below the time limit of communication.
  constexpr std::chrono::milliseconds kHeartbeat{20};
  return pending_.valid() && pending_.wait_for(kHeartbeat) != std::future_status::ready;
}

void ConsolidatedWriter::take() {
  Outcome outcome = pending_.get();
  note_ = fmt::format("{}", fmt::join(outcome.lines, "\n"));
  unwritten_ = std::move(outcome.unwritten);
}

void ConsolidatedWriter::finish() {
  while (control_.any(writing())) {
  }
  if (pending_.valid()) take();
}

std::string ConsolidatedWriter::take_note() {
  if (pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    take();
  return std::exchange(note_, {});
}

}  // namespace mtrain::run
