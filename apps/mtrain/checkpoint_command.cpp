// Lists, shows, checks, compares, rewrites and deletes checkpoints.
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/content_hash.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "interchange/checkpoint_record.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "launch/end_signals.h"
#include "observe/banner.h"
#include "observe/progress.h"
#include "recipe/recipe.h"
#include "run/signal_guard.h"
#include "storage/checkpoint_diff.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_list.h"
#include "storage/checkpoint_tensors.h"
#include "storage/folder_lock.h"
#include "storage/local_list.h"
#include "storage/reshard_checkpoint.h"
#include "storage/state.h"
#include "storage/verify_checkpoint.h"

namespace mtrain {

namespace {

namespace fs = std::filesystem;

constexpr auto kLeft = TableColumn::Align::left;
constexpr const char* kPathHelp = "run folder, folder of checkpoints, or one checkpoint";

std::string local_time(int64_t seconds) {
  if (seconds == 0) return "-";
  const std::time_t time = seconds;
  std::tm parts{};
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&time, &parts));
  return text;
}

fs::path root_of(const std::string& path) {
  const auto root = interchange::locate_checkpoints(path);
  if (!root)
    throw UserError(fmt::format("{} holds no checkpoints", path),
                    "give a run folder, or a folder of checkpoints such as runs/a/checkpoints");
  return *root;
}

fs::path checkpoint_of(const std::string& path) {
  const auto found = interchange::locate_checkpoint(path);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", path),
                    "give a checkpoint such as runs/a/checkpoints/step-00000120, or a run folder");
  return found->path;
}

// Shows how much of a long reading is done, on a terminal.
class Reading {
 public:
  std::function<void(int64_t, int64_t)> shown(std::string what) {
    return [this, what = std::move(what)](int64_t done, int64_t total) {
      line_.activity(
          fmt::format("{} {:.0f} %", what, total > 0 ? 100. * double(done) / double(total) : 100));
    };
  }
  void done() { line_.idle(); }

 private:
  observe::ProgressLine line_;
};

// --- list

const char* state_text(storage::ListedCheckpoint::State state) {
  using State = storage::ListedCheckpoint::State;
  switch (state) {
    case State::complete: return "complete";
    case State::damaged: return "damaged";
    case State::unreadable: return "unreadable";
    case State::set_aside: return "set aside";
    case State::temporary: return "temporary";
  }
  throw BugError("state of a checkpoint");
}

const char* state_text(storage::ListedPart::State state) {
  using State = storage::ListedPart::State;
  switch (state) {
    case State::complete: return "complete";
    case State::damaged: return "damaged";
    case State::unfinished: return "unfinished";
  }
  throw BugError("state of a part");
}

// Lists local copies in folders of runs, `<dir>/<host>/<run>`.
void list_local_copies(const std::vector<fs::path>& folders) {
  std::vector<std::vector<std::string>> rows;
  std::string faults;
  // The parts of a copy that are complete, perhaps in the folders of several hosts.
  using Copy = std::tuple<std::string, int64_t, std::string>;  // run, step, start
  struct Parts {
    int ranks = 0;
    std::set<int> complete;
  };
  std::map<Copy, Parts> copies;
  for (const fs::path& folder : folders) {
    const fs::path at = fs::canonical(folder);
    const std::string run = at.filename().string(), host = at.parent_path().filename().string();
    for (const storage::ListedPart& p : storage::listed_parts(at)) {
      const std::string part =
          p.ranks > 0 ? fmt::format("{} of {}", p.name.rank, p.ranks) : std::to_string(p.name.rank);
      rows.push_back({run, host, std::to_string(p.name.step), part,
                      p.host.empty() || p.host == host ? "" : p.host, local_time(p.saved_at),
                      human_bytes(double(p.bytes)), state_text(p.state)});
      if (!p.fault.empty()) faults += p.fault + "\n";
      Parts& parts = copies[{run, p.name.step, p.name.start}];
      parts.ranks = std::max(parts.ranks, p.ranks);
      if (p.state == storage::ListedPart::State::complete) parts.complete.insert(p.name.rank);
    }
  }
  const std::vector<TableColumn> columns{{"run", 0, kLeft},  {"host", 0, kLeft},       {"step"},
                                         {"part", 0, kLeft}, {"replica of", 0, kLeft}, {"saved"},
                                         {"size"},           {"state", 0, kLeft}};
  std::fputs(text_table(columns, rows, line_width(STDOUT_FILENO)).c_str(), stdout);
  print_lines(faults);
  for (const auto& [copy, parts] : copies) {
    const std::string of = std::get<0>(copy);
    print_lines(parts.ranks > 0 && int(parts.complete.size()) == parts.ranks
                    ? fmt::format("{}, step {}: all {} parts are here\n", of, std::get<1>(copy),
                                  parts.ranks)
                    : fmt::format("{}, step {}: {} of {} parts are here\n", of, std::get<1>(copy),
                                  parts.complete.size(),
                                  parts.ranks > 0 ? std::to_string(parts.ranks) : "?"));
  }
}

void list_checkpoints(const std::string& path) {
  const std::vector<fs::path> copies = storage::folders_of_parts(path);
  const bool of_run = copies.size() == 1 && copies[0] == path;  // its names look like steps
  if (of_run || (!copies.empty() && !interchange::locate_checkpoints(path)))
    return list_local_copies(copies);
  const fs::path root = root_of(path);
  const int width = line_width(STDOUT_FILENO);
  std::vector<std::vector<std::string>> rows;
  std::string faults;
  for (const storage::ListedCheckpoint& c : storage::listed_checkpoints(root)) {
    const std::string names = fmt::format("{}{}{}", c.latest ? "latest" : "",
                                          c.latest && c.best ? ", " : "", c.best ? "best" : "");
    rows.push_back({c.path.filename().string(), local_time(c.saved_at),
                    human_bytes(double(c.bytes)),
                    c.validation_loss ? fmt::format("{:.4f}", *c.validation_loss) : "-",
                    state_text(c.state), names});
    if (!c.fault.empty()) faults += fmt::format("{}\n", c.fault);
  }
  const std::vector<TableColumn> columns{
      {"checkpoint", 0, kLeft}, {"saved"},           {"size"},
      {"validation loss"},      {"state", 0, kLeft}, {"named", 0, kLeft}};
  std::fputs(text_table(columns, rows, width).c_str(), stdout);
  print_lines(faults);
}

// --- show

std::string saved_layout(const fs::path& checkpoint, const storage::TrainState& state) {
  Diagnostics ignored;
  // The model's sizes do not matter here. With this text, the folder of model.from is not read.
  const auto r =
      recipe::read_recipe_text(interchange::model_source(), interchange::recorded_text(checkpoint),
                               "the saved recipe", {}, ignored, "model: {}\n");
  const int64_t ranks = state.contains("ranks") ? state.integer("ranks") : 0;
  std::string text = ranks > 0 ? fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s") : "import";
  if (!r || ranks == 0) return text;
  const recipe::DistributedConfig& d = r->distributed;
  text += fmt::format(": {}, tp {} x pp {} x cp {}", enum_name(d.strategy), d.tp_size, d.pp_size,
                      d.cp_size);
  if (d.ep_size > 1) text += fmt::format(", ep {}", d.ep_size);
  return text;
}

// Returns the name with `*` for numbers of layers: "layers.*.mlp.down.weight".
std::string pattern_of(const std::string& name) {
  std::string out;
  for (const std::string& word : split(name, '.')) {
    const bool number =
        !word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c); });
    out += (out.empty() ? "" : ".") + (number ? "*" : word);
  }
  return out;
}

std::string shape_text(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return fmt::format("{}", fmt::join(dims, " x "));
}

std::string tensors_text(storage::TensorSet set, const storage::CheckpointTensors& tensors,
                         int width) {
  using Kind = std::tuple<std::string, std::string, std::string>;  // pattern, type, shape
  std::vector<Kind> order;
  std::map<Kind, int64_t> count;
  int64_t elements = 0, bytes = 0;
  for (const storage::CheckpointTensors::Entry& t : tensors.entries()) {
    const Shape shape = tensors.shape(t.name);
    const Kind kind{pattern_of(t.name), t.type, shape_text(shape)};
    if (count[kind]++ == 0) order.push_back(kind);
    elements += shape.count();
    if (t.dtype) bytes += shape.count() * dtype_size(*t.dtype);
  }
  std::vector<std::vector<std::string>> rows;
  for (const Kind& kind : order)
    rows.push_back(
        {std::get<0>(kind), std::get<1>(kind), std::get<2>(kind), std::to_string(count.at(kind))});
  const std::vector<TableColumn> columns{
      {"tensor", 0, kLeft}, {"type"}, {"shape", 0, kLeft}, {"tensors"}};
  return fmt::format("\n{}: {} tensors, {} elements, {}\n", storage::tensor_set_name(set),
                     tensors.entries().size(), human_count(double(elements)),
                     human_bytes(double(bytes))) +
         text_table(columns, rows, width);
}

void show_checkpoint(const std::string& path) {
  const fs::path folder = checkpoint_of(path);
  storage::TrainState state;
  if (fs::exists(folder / "state.json")) state = storage::TrainState::load(folder / "state.json");
  const std::string recipe = interchange::recorded_text(folder);
  storage::ListedCheckpoint listed;
  for (auto& c : storage::listed_checkpoints(fs::absolute(folder).parent_path()))
    if (c.path.filename() == fs::absolute(folder).filename()) listed = std::move(c);
  std::vector<observe::BannerRow> rows{
      {"step", state.contains("step") ? std::to_string(state.integer("step")) : "0"},
      {"samples", state.contains("samples") ? std::to_string(state.integer("samples")) : "-"},
      {"saved", local_time(listed.saved_at)},
      {"size", human_bytes(double(listed.bytes))},
      {"saved by", saved_layout(folder, state)},
      {"recipe", fmt::format("{} lines, xxh3-128 {}", std::ranges::count(recipe, '\n'),
                             content_hash(recipe))}};
  if (state.contains(storage::kValidationLoss)) {
    std::string loss = state.text(storage::kValidationLoss);
    if (state.contains(storage::kValidationSamples))
      loss += fmt::format(" over {} samples", state.integer(storage::kValidationSamples));
    rows.insert(rows.begin() + 4, {"validation loss", loss});
  }
  observe::print_banner(STDOUT_FILENO, folder.string(), rows);
  for (const auto& [set, tensors] : storage::open_all_checkpoint_tensors(folder))
    std::fputs(tensors_text(set, *tensors, line_width(STDOUT_FILENO)).c_str(), stdout);
}

// --- verify

// Returns the checkpoint at `path`, damaged or not, or all of the folder.
std::vector<fs::path> to_verify(const std::string& path) {
  if (storage::is_ours(path)) return {path};
  std::vector<fs::path> all;
  for (const storage::CheckpointRef& ref : storage::checkpoints_after(root_of(path), -1))
    all.push_back(ref.path);
  return all;
}

void verify(const std::string& path) {
  size_t faults = 0, damaged = 0;
  const std::vector<fs::path> all = to_verify(path);
  for (const fs::path& folder : all) {
    Reading reading;
    const storage::Verified result =
        storage::verify_checkpoint(folder, reading.shown("reading " + folder.filename().string()));
    reading.done();
    for (const std::string& fault : result.faults) print_lines(fault + "\n");
    faults += result.faults.size(), damaged += !result.faults.empty();
    if (!result.faults.empty()) continue;
    print_lines(result.has_sums
                    ? fmt::format("{}: sound; {} files, {} in {} blocks\n", folder.string(),
                                  result.files, human_bytes(double(result.bytes)), result.blocks)
                    : fmt::format("{}: {} files have their sizes; it has no checksums, since an "
                                  "earlier version saved it\n",
                                  folder.string(), result.files));
  }
  if (faults == 0) return;
  throw RunError(fmt::format("{} of {} checkpoint{} damaged: {} fault{}", damaged, all.size(),
                             all.size() == 1 ? " is" : "s are", faults, faults == 1 ? "" : "s"),
                 "copy the files again from an intact source");
}

// --- diff

void diff(const std::string& a, const std::string& b, bool show_all) {
  constexpr size_t kShown = 20;
  const fs::path left = checkpoint_of(a), right = checkpoint_of(b);
  Reading reading;
  const auto rows = storage::checkpoint_differences(left, right, reading.shown("comparing"));
  reading.done();
  std::vector<std::vector<std::string>> cells;
  size_t differ = 0;
  for (const storage::TensorDifference& row : rows) {
    differ += row.differs();
    if (!show_all && (!row.differs() || cells.size() == kShown)) continue;
    if (!row.reason.empty())
      cells.push_back({row.name, "-", "-", row.reason});
    else
      cells.push_back({row.name, fmt::format("{:.3g}", row.largest),
                       fmt::format("{:.3g}", row.scale),
                       row.largest > 0 ? fmt::format("{}", row.element) : ""});
  }
  const std::vector<TableColumn> columns{
      {"tensor", 0, kLeft}, {"largest difference"}, {"largest value"}, {"element", 0, kLeft}};
  if (!cells.empty())
    std::fputs(text_table(columns, cells, line_width(STDOUT_FILENO)).c_str(), stdout);
  if (!show_all && differ > kShown)
    print_lines(fmt::format("... and {} more; --all shows every tensor\n", differ - kShown));
  if (differ > 0) throw RunError(fmt::format("{} of {} tensors differ", differ, rows.size()));
  print_lines(fmt::format("all {} tensors are equal\n", rows.size()));
}

// --- reshard

void reshard(const std::string& path, const std::string& output, int files) {
  const fs::path source = checkpoint_of(path);
  interchange::report_checkpoint(source);
  Reading reading;
  const auto shown = reading.shown("rewriting " + source.filename().string());
  const run::SignalGuard signals;
  const auto progress = [&](int64_t done, int64_t total) {
    if (const int signal = signals.signal())
      throw RunError(fmt::format("{}: nothing is written", launch::name_of(signal)));
    shown(done, total);
  };
  const storage::Resharded made =
      storage::reshard_checkpoint(source, output, {.files = files, .progress = progress});
  reading.done();
  print_lines(fmt::format("written: {} ({} tensors, {} in {} file{})\n", made.checkpoint.string(),
                          made.tensors, human_bytes(double(made.bytes)), made.files,
                          made.files == 1 ? "" : "s"));
}

void add_reshard(CLI::App& parent) {
  struct Options {
    std::string path, output;
    int files = 0;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand(
      "reshard",
      "write a checkpoint again with its tensors in another number of files; the tensors stay the "
      "same, bit by bit, and the source is not changed");
  command->add_option("path", o->path, kPathHelp)->required();
  command->add_option("--output", o->output, "new folder of checkpoints to write")->required();
  constexpr int64_t kMost = 1 << 16;
  command
      ->add_option("--ranks,--files", o->files,
                   "how many files of weights, and of the optimizer's state: as many ranks write "
                   "one each")
      ->required()
      ->check(integer_from(1, kMost, 8).description(""));
  set_examples(*command, {"mtrain checkpoint reshard runs/first --output runs/eight --ranks 8"});
  command->callback([o] { reshard(o->path, o->output, o->files); });
}

// --- prune

struct PruneOptions {
  std::string path;
  int64_t keep = -1, keep_every = 0, keep_best = 0;  // keep -1: not given
  bool yes = false;
};

void prune(const PruneOptions& o) {
  if (o.keep < 0 && o.keep_every == 0 && o.keep_best == 0)
    throw UserError("no rule says what to keep",
                    "give --keep N, and --keep-every or --keep-best for others to keep as well");
  const fs::path root = root_of(o.path);
  if (storage::is_folder_held(root))
    throw UserError(fmt::format("a run is saving checkpoints in {}", root.string()),
                    "wait until it ends; its own checkpoint.keep deletes old ones meanwhile");
  std::optional<storage::FolderLock> lock;  // no run starts while checkpoints are deleted
  if (o.yes) lock.emplace(root, storage::FolderLockOptions{.setting = "checkpoint.dir"});
  const std::vector<storage::CheckpointRef> complete = storage::list_complete(root);
  // The newest stays under every rule.
  const storage::KeepRule rule{
      .newest = int(std::max<int64_t>(1, o.keep)), .best = int(o.keep_best), .every = o.keep_every};
  const auto kept = steps_to_keep(storage::retained_from(root, complete), rule);
  std::map<std::string, int64_t> bytes;
  for (const auto& c : storage::listed_checkpoints(root)) bytes[c.path.string()] = c.bytes;
  int64_t freed = 0, deleted = 0;
  for (const storage::CheckpointRef& ref : complete) {
    if (kept.contains(ref.step)) continue;
    freed += bytes[ref.path.string()], ++deleted;
    print_lines(fmt::format("{} {}\n", o.yes ? "deleting" : "would delete", ref.path.string()));
    if (o.yes) storage::delete_checkpoint(root, ref);
  }
  print_lines(fmt::format("{} of {} checkpoints{}, {}; {} stay{}\n", deleted, complete.size(),
                          o.yes ? " deleted" : "", human_bytes(double(freed)),
                          complete.size() - size_t(deleted),
                          o.yes || deleted == 0 ? "" : ". With --yes they are deleted"));
}

void add_prune(CLI::App& parent) {
  auto o = std::make_shared<PruneOptions>();
  auto* command = parent.add_subcommand(
      "prune",
      "delete old checkpoints; without --yes only list them. Damaged ones, and those that `latest` "
      "or `best` names or a program reads, stay");
  constexpr int64_t kMost = 1 << 20;
  command->add_option("path", o->path, kPathHelp)->required();
  command->add_option("--keep", o->keep, "how many of the newest stay; 1 unless given")
      ->check(integer_from(1, kMost, 2).description(""));
  command->add_option("--keep-every", o->keep_every, "multiples of this step stay as well")
      ->check(integer_from(1, int64_t{1} << 53, 1000).description(""));
  command
      ->add_option("--keep-best", o->keep_best,
                   "how many with the lowest validation loss stay as well")
      ->check(integer_from(1, kMost, 1).description(""));
  command->add_flag("--yes", o->yes, "delete them");
  set_examples(*command, {"mtrain checkpoint prune runs/first --keep 2 --keep-every 1000",
                          "mtrain checkpoint prune runs/first --keep 1 --yes"});
  command->callback([o] { prune(*o); });
}

void add_diff(CLI::App& parent) {
  struct Options {
    std::string a, b;
    bool all = false;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand(
      "diff", "compare the tensors of two checkpoints; exit code 1 if any differs");
  command->add_option("first", o->a, kPathHelp)->required();
  command->add_option("second", o->b, kPathHelp)->required();
  command->add_flag("--all", o->all, "show equal tensors, too");
  set_examples(*command, {"mtrain checkpoint diff runs/first runs/second"});
  command->callback([o] { diff(o->a, o->b, o->all); });
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("checkpoint", "list, check, compare, rewrite and delete checkpoints");
  command->require_subcommand(1);
  set_examples(*command,
               {"mtrain checkpoint list runs/first", "mtrain checkpoint verify runs/first",
                "mtrain checkpoint prune runs/first --keep 2 --keep-every 1000"});
  const auto add = [&](const char* name, const char* help, void (*run)(const std::string&)) {
    auto path = std::make_shared<std::string>();
    auto* sub = command->add_subcommand(name, help);
    sub->add_option("path", *path, kPathHelp)->required();
    sub->callback([path, run] { run(*path); });
    return sub;
  };
  set_examples(*add("list",
                    "step, date, size, validation loss and state of each checkpoint; of a folder "
                    "of local copies (checkpoint.local.dir) each part and its state",
                    list_checkpoints),
               {"mtrain checkpoint list runs/first"});
  set_examples(
      *add("show", "what a checkpoint holds: recipe, layout of the run, tensors", show_checkpoint),
      {"mtrain checkpoint show runs/first"});
  set_examples(*add("verify",
                    "read every byte and check it; names the file and the tensors of a bad block; "
                    "exit code 1 if there is one",
                    verify),
               {"mtrain checkpoint verify runs/first",
                "mtrain checkpoint verify runs/first/checkpoints/step-00000020"});
  add_diff(*command);
  add_reshard(*command);
  add_prune(*command);
}

}  // namespace mtrain
