// Draws the curves of runs on the terminal, or prints their metrics as CSV.
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "commands.h"
#include "observe/live_screen.h"
#include "observe/metric_keys.h"
#include "observe/metrics_csv.h"
#include "observe/metrics_reader.h"
#include "observe/progress.h"
#include "observe/watch.h"
#include "storage/folder_lock.h"

namespace mtrain {

namespace {

namespace fs = std::filesystem;

constexpr int kPipedColumns = 60, kMaxColumns = 200, kMinColumns = 30;
constexpr int kRows = 15, kMinRows = 3;
constexpr int64_t kMaxSteps = int64_t{1} << 53;
constexpr std::chrono::milliseconds kBetween{1000};  // the interval between two drawings

struct WatchOptions {
  std::vector<std::string> runs;
  std::string keys = "loss";
  int columns = 0, rows = 0;  // 0: the size of the terminal
  std::optional<int64_t> from, last;
  int64_t smooth = 1;
  bool csv = false, log = false, plain = false, once = false, follow = false;
};

// The runs that are drawn, and their metrics.
class Watch {
 public:
  Watch(const WatchOptions& options, const std::vector<observe::RunFile>& runs)
      : options_(options), key_(options.keys) {
    for (const observe::RunFile& run : runs) {
      metrics_.push_back(std::make_unique<observe::RunMetrics>(
          run.path, observe::watched_keys(key_), [this, name = run.name](double part) {
            if (reading_) reading_->activity(fmt::format("reading {} {:.0f} %", name, 100 * part));
          }));
      runs_.push_back({.name = run.name, .metrics = metrics_.back().get()});
    }
  }

  void once() {
    read();
    for (const auto& m : metrics_) observe::warn_of_damage(m->stream());
    if (std::ranges::all_of(metrics_, [](const auto& m) { return m->empty(); }))
      throw observe::no_records(metrics_.front()->stream().path());
    check_key();
    std::fputs(text().c_str(), stdout);
  }

  void live() {
    read();
    observe::LiveScreen screen(STDOUT_FILENO);
    // find_live() is called before the files are read. The last picture therefore has the last
    // records of each run.
    for (bool keeps_running = true; keeps_running; screen.pause(kBetween)) {
      keeps_running = find_live() || options_.follow;
      poll();
      if (!observe::find_metric_key(key_)) check_key();
      screen.draw(text());
      if (!keeps_running) return;
    }
  }

  // Sets which runs still train, and returns whether any does.
  bool find_live() {
    bool any = false;
    for (observe::WatchedRun& run : runs_) {
      const fs::path folder = run.metrics->stream().path().parent_path();
      run.live = storage::is_folder_held(folder.empty() ? "." : folder);
      any = any || run.live;
    }
    return any;
  }

 private:
  // Reads all records, and shows the progress.
  void read() {
    observe::ProgressLine line;
    reading_ = &line;
    poll();
    reading_ = nullptr;
  }

  void poll() {
    // A restarted run renames the file before it creates a new one. The old records stay until
    // then.
    std::error_code error;
    for (const auto& m : metrics_)
      if (m->empty() || fs::exists(m->stream().path(), error)) m->poll();
  }

  void check_key() const {
    std::set<std::string, std::less<>> known;
    for (const auto& m : metrics_) known.insert(m->keys().begin(), m->keys().end());
    if (!known.empty() && !known.contains(key_)) throw observe::unknown_key(key_, known);
  }

  std::string text() const {
    const int out = STDOUT_FILENO;
    const bool terminal = ::isatty(out);
    observe::CurveOptions o{.columns = options_.columns,
                            .rows = options_.rows > 0 ? options_.rows : kRows,
                            .braille = !options_.plain && locale_is_utf8(),
                            .color = wants_color(out),
                            .log = options_.log,
                            .from = options_.from,
                            .last = options_.last,
                            .smooth = options_.smooth};
    // Some terminals wrap when the last column is filled.
    if (o.columns == 0)
      o.columns =
          terminal ? std::clamp(terminal_width(out) - 1, kMinColumns, kMaxColumns) : kPipedColumns;
    if (terminal && options_.rows == 0)
      o.rows = std::clamp(terminal_height(out) - 1 - observe::lines_beside_plot(runs_, key_, o),
                          kMinRows, kRows);
    return observe::watch_text(runs_, key_, o);
  }

  const WatchOptions& options_;
  const std::string key_;
  observe::ProgressLine* reading_ = nullptr;
  std::vector<std::unique_ptr<observe::RunMetrics>> metrics_;
  std::vector<observe::WatchedRun> runs_;
};

void print_csv(const WatchOptions& o, const std::vector<observe::RunFile>& runs, bool keys_given) {
  observe::CsvOptions csv{.keys = {}, .from = o.from, .last = o.last};
  if (keys_given) csv.keys = split(o.keys, ',');
  observe::write_metrics_csv(runs, csv, [](std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw RunError(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
  });
}

void watch(const WatchOptions& o, bool keys_given) {
  if (o.runs.size() > observe::kMaxCurves)
    throw UserError(fmt::format("mtrain watch takes at most {} runs, and {} are given",
                                observe::kMaxCurves, o.runs.size()),
                    "leave some out");
  std::vector<observe::RunFile> runs;
  for (const std::string& run : o.runs) {
    std::string name = run;
    while (name.size() > 1 && name.ends_with('/')) name.pop_back();
    runs.push_back({.name = name, .path = observe::locate_metrics(run)});
  }
  if (o.csv) return print_csv(o, runs, keys_given);
  if (o.keys.find(',') != std::string::npos)
    throw UserError(fmt::format("--key {}: a picture shows one key", o.keys),
                    "give one; --csv takes several");
  const bool terminal = is_live_terminal(STDOUT_FILENO);
  if (o.follow && !terminal)
    throw UserError("--follow needs a terminal as its output", "leave it out, or add --once");
  Watch picture(o, runs);
  if (terminal && !o.once && (o.follow || picture.find_live()))
    picture.live();
  else
    picture.once();
}

}  // namespace

void add_watch_command(CLI::App& app) {
  auto o = std::make_shared<WatchOptions>();
  auto* command =
      app.add_subcommand("watch", "draw the loss curves of runs, live while they train; or as CSV");
  set_examples(*command, {"mtrain watch runs/first", "mtrain watch runs/first runs/second --log",
                          "mtrain watch runs/first --key grad_norm --smooth 20",
                          "mtrain watch runs/first runs/second --csv > runs.csv"});
  command
      ->add_option("run", o->runs,
                   "run folders, checkpoints in them, or metrics.jsonl files; at most 6")
      ->required();
  auto* key = command->add_option(
      "--key", o->keys, "key to draw; default: loss; with --csv a list such as loss,grad_norm");
  auto* csv = command->add_flag("--csv", o->csv, "print CSV instead: a row per step");
  command->add_option("--from-step", o->from, "first step to show")
      ->check(integer_from(0, kMaxSteps).description(""));
  command->add_option("--last", o->last, "show only this many of the last steps")
      ->check(integer_from(1, kMaxSteps).description(""));
  command->add_option("--smooth", o->smooth, "draw means over this many steps")
      ->check(integer_from(1, kMaxSteps).description(""))
      ->excludes(csv);
  command->add_flag("--log", o->log, "logarithmic axis of values")->excludes(csv);
  command->add_flag("--plain", o->plain, "ASCII instead of braille, as without UTF-8 in LANG")
      ->excludes(csv);
  command
      ->add_option("--height", o->rows,
                   "rows of the plot; default: 15, or fewer if the terminal is smaller")
      ->check(integer_from(kMinRows, 200))
      ->excludes(csv);
  command->add_option("--columns", o->columns, "width of the text; default: that of the terminal")
      ->check(integer_from(kMinColumns, 1000))
      ->excludes(csv);
  auto* once = command->add_flag("--once", o->once, "draw once, even if a run is training");
  once->excludes(csv);
  command->add_flag("--follow", o->follow, "draw until Ctrl-C, even if no run is training")
      ->excludes(csv)
      ->excludes(once);
  command->callback([o, key] { watch(*o, key->count() > 0); });
}

}  // namespace mtrain
