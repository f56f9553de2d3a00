#include "run/consolidated_writer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "storage/manifest.h"

namespace mtrain::run {

namespace {

namespace fs = std::filesystem;

constexpr const char* kEarlierName = "hf";  // of the form that earlier versions wrote
constexpr char kEndOfPath = '\0';

bool has_form(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / storage::kConsolidated, error) ||
         fs::exists(checkpoint / kEarlierName, error);
}

// Removes the leftovers of forms whose process died.
void remove_leftovers(const fs::path& checkpoint) {
  std::vector<fs::path> left;
  std::error_code error;
  fs::directory_iterator it(checkpoint, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error))
    for (const char* name : {storage::kConsolidated, kEarlierName})
      if (it->path().filename().string().starts_with(std::string(name) + ".tmp-"))
        left.push_back(it->path());
  for (const fs::path& folder : left) fs::remove_all(folder, error);
}

std::string describe(const interchange::Exported& done) {
  return fmt::format("for transformers ({}, {} in {} file{})", done.model_type,
                     human_bytes(double(done.bytes)), done.files, done.files == 1 ? "" : "s");
}

std::string path_lines(const std::vector<fs::path>& paths) {
  std::string text;
  for (const fs::path& path : paths) text += (text.empty() ? "" : "\n") + path.string();
  return text;
}

}  // namespace

checkpoint::AddedFiles ConsolidatedWriter::files(std::function<void()> fault) {
  return {.begin = [this](const fs::path& checkpoint) { return begin(checkpoint); },
          .write =
              [this, fault = std::move(fault)](const fs::path& checkpoint, const std::string& text,
                                               const std::function<void()>& meanwhile) {
                write(checkpoint, text, [&] {
                  meanwhile();
                  if (pulse_) pulse_->wrote();
                  if (fault) fault();
                });
              },
          .end = [this] { end(); },
          .failed = [this](const std::string& error) { failed(error); }};
}

// The text is the path of the temporary folder, and the contents of the form.
std::string ConsolidatedWriter::begin(const fs::path& checkpoint) {
  written_.clear();
  output_ = checkpoint / storage::kConsolidated;
  folder_.reset();
  remove_leftovers(checkpoint);
  folder_.emplace(output_);
  return folder_->path().string() + kEndOfPath +
         interchange::plan_consolidated(checkpoint, folder_->path());
}

void ConsolidatedWriter::write(const fs::path& checkpoint, const std::string& text,
                               const std::function<void()>& before_piece) {
  const size_t end = text.find(kEndOfPath);
  MT_CHECK(end != std::string::npos, "no text of begin()");
  exported_ = interchange::write_consolidated(checkpoint, text.substr(0, end), text.substr(end + 1),
                                              {control_.rank(), control_.size()},
                                              {.before_piece = before_piece});
}

void ConsolidatedWriter::end() {
  interchange::await_consolidated(folder_->path(), *exported_);
  folder_->commit();
  folder_.reset();
  written_ = describe(*exported_);
}

void ConsolidatedWriter::failed(const std::string& error) {
  folder_.reset();
  log::warn(fmt::format("cannot write {} for transformers; the checkpoint itself is complete: {}",
                        output_.string(), error));
}

void ConsolidatedWriter::committed(const fs::path& checkpoint) {
  const std::string written = std::exchange(written_, {});
  if (control_.rank() > 0) return;
  if (written.empty())
    unwritten_.push_back(checkpoint);
  else
    note_ += fmt::format("{}saved {} {}", note_.empty() ? "" : "\n",
                         (checkpoint / storage::kConsolidated).string(), written);
}

void ConsolidatedWriter::complete(const fs::path& checkpoint) {
  const std::string of_last_save = std::exchange(written_, {});  // for committed()
  std::vector<fs::path> missing;
  if (control_.rank() == 0) {
    missing = std::exchange(unwritten_, {});
    std::error_code error;
    std::erase_if(missing, [&](const fs::path& p) {
      return p == checkpoint || (!fs::exists(p, error) && !error);
    });
    if (!checkpoint.empty()) missing.push_back(checkpoint);
    for (const fs::path& p : missing) remove_leftovers(p);
    std::erase_if(missing, has_form);
  }
  for (const std::string& path : split(control_.texts(path_lines(missing))[0], '\n')) {
    if (path.empty()) continue;
    add_files(control_, path, files());
    committed(path);
  }
  written_ = of_last_save;
}

std::string ConsolidatedWriter::take_note() { return std::exchange(note_, {}); }

}  // namespace mtrain::run
