#include "run/consolidated_writer.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/ranks_together.h"
#include "checkpoint/save_error.h"
#include "interchange/export.h"
#include "storage/manifest.h"
#include "storage/new_folder.h"

namespace mtrain::run {

namespace {

namespace fs = std::filesystem;

constexpr const char* kEarlierName = "hf";  // of the form that earlier versions wrote

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

std::string ConsolidatedWriter::write_into(const fs::path& checkpoint, const fs::path& folder,
                                           const std::function<void()>& fault,
                                           const std::function<void()>& finish) {
  const interchange::ExportPart part{control_.rank(), control_.size()};
  std::optional<interchange::Exported> done;
  try {
    checkpoint::all_together(control_, [&](checkpoint::Meetings& meetings) {
      meetings.run([&] {
        done = interchange::write_consolidated(checkpoint, folder, part, {.before_piece = fault});
      });
    });
    checkpoint::all_together(control_, [&](checkpoint::Meetings& meetings) {
      if (part.rank > 0) return;
      meetings.run([&] {
        interchange::await_consolidated(folder, *done);
        finish();
      });
    });
  } catch (const checkpoint::SaveError& e) {  // on all ranks
    if (part.rank > 0) return "";
    std::error_code error;
    fs::remove_all(folder, error);
    log::warn(fmt::format("cannot write {} for transformers; the checkpoint itself is complete: {}",
                          folder.string(), e.what()));
    return "";
  }
  return describe(*done);
}

void ConsolidatedWriter::write(const fs::path& folder, const std::function<void()>& fault) {
  written_ = write_into(folder, folder / storage::kConsolidated, fault, [] {});
}

void ConsolidatedWriter::committed(const fs::path& checkpoint) {
  const std::string written = std::exchange(written_, {});
  if (control_.rank() > 0) return;
  if (written.empty())
    unwritten_.push_back(checkpoint);
  else
    add_note(checkpoint / storage::kConsolidated, written);
}

void ConsolidatedWriter::add_note(const fs::path& folder, const std::string& what) {
  note_ += fmt::format("{}saved {} {}", note_.empty() ? "" : "\n", folder.string(), what);
}

void ConsolidatedWriter::complete(const fs::path& checkpoint) {
  const bool first = control_.rank() == 0;
  std::vector<fs::path> missing;
  if (first) {
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
    const fs::path output = fs::path(path) / storage::kConsolidated;
    std::optional<storage::NewFolder> folder;
    std::string temporary;
    try {
      checkpoint::all_together(control_, [&](checkpoint::Meetings&) {
        if (first) temporary = folder.emplace(output).path().string();
      });
    } catch (const checkpoint::SaveError& e) {
      if (first) {
        unwritten_.push_back(path);
        log::warn(fmt::format("cannot write {} for transformers: {}", output.string(), e.what()));
      }
      continue;
    }
    temporary = control_.texts(temporary)[0];
    const std::string written = write_into(path, temporary, {}, [&] { folder->commit(); });
    if (!first) continue;
    if (written.empty())
      unwritten_.push_back(path);
    else
      add_note(output, written);
  }
}

std::string ConsolidatedWriter::take_note() { return std::exchange(note_, {}); }

}  // namespace mtrain::run
