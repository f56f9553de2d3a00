#include "apps/build_progress.h"

#include <unistd.h>

#include <fmt/core.h>

#include "base/file.h"
#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain {

void show_build_progress(const data::BuildProgress& p, const std::string& label) {
  static const bool live = is_live_terminal(STDERR_FILENO);
  if (!live) return;
  const double share = p.bytes_total ? double(p.bytes_done) / double(p.bytes_total) : 1;
  const std::string line =
      fmt::format("{}{:3.0f} %  {} of {}, {} documents, {} tokens", label, 100 * share,
                  human_bytes(double(p.bytes_done)), human_bytes(double(p.bytes_total)),
                  human_count(double(p.documents)), human_count(double(p.tokens)));
  // One column stays free, since some terminals wrap when the last column is filled.
  const auto shown = fit_columns(line, terminal_width(STDERR_FILENO) - 1);
  write_all(STDERR_FILENO,
            fmt::format("\r{}\033[K{}", shown, p.bytes_done == p.bytes_total ? "\n" : ""));
}

}  // namespace mtrain
