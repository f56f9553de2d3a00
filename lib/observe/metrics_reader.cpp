#include "observe/metrics_reader.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/json.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "observe/metric_keys.h"

namespace mtrain::observe {

namespace fs = std::filesystem;

namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kBlock = size_t{1} << 20;        // bytes that are read at once
constexpr size_t kLongestLine = size_t{1} << 20;  // no record is longer
constexpr size_t kMaxDamaged = 3;                 // lines that are kept with their reasons
constexpr int64_t kLastSteps = 20;                // the steps of a current rate
constexpr const char* kFile = "metrics.jsonl";

bool is_evaluation(std::string_view key) {
  const MetricKey* known = find_metric_key(key);
  return known && known->record == MetricKey::Record::evaluation;
}

double mean(const Series& series) {
  double sum = 0;
  int64_t count = 0;
  for (const double value : series.values)
    if (std::isfinite(value)) sum += value, ++count;
  return count > 0 ? sum / double(count) : kNoValue;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Returns the names of a folder's entries; with `runs_alone`, only of folders with metrics.
std::vector<std::string> names_in(const fs::path& folder, bool runs_alone) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (!runs_alone || is_file(at->path() / kFile)) names.push_back(at->path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace

MetricsRecord parse_metrics_record(std::string_view line) {
  const nlohmann::json object = parse_json(line, "");
  if (!object.is_object()) throw UserError("not an object");
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) throw UserError("it has no step");
  MetricsRecord record{.step = step->get<int64_t>(), .values = {}};
  // Keys are printed to a terminal, and the file may be from any source.
  for (const auto& [key, value] : object.items())
    if ((value.is_number() || value.is_null()) && is_printable(key))
      record.values.emplace(key, value.is_null() ? kNoValue : value.get<double>());
  record.evaluation = record.values.contains("validation_loss");
  return record;
}

namespace {

// Whether the text begins as a number of JSON may: JSON has no leading zeros. "-0" is left to the
// full parser, for which it is an integer.
bool begins_number(std::string_view text) {
  const size_t sign = text.starts_with('-') ? 1 : 0;
  const auto is_digit = [&](size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  if (!is_digit(sign)) return false;
  return text[sign] != '0' || (!is_digit(sign + 1) && (sign == 0 || text.substr(2, 1) == "."));
}

// Reads a number or null at the beginning of `text`, and removes it. Returns false for anything
// else; it may then still be valid.
bool take_number(std::string_view& text, double& value) {
  if (text.starts_with("null")) {
    value = kNoValue;
    text.remove_prefix(4);
    return true;
  }
  if (!begins_number(text)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  const std::string_view number(text.data(), size_t(end - text.data()));
  const size_t point = number.find('.');
  // JSON has digits after a point.
  if (point != std::string_view::npos &&
      (point + 1 == number.size() || number[point + 1] < '0' || number[point + 1] > '9'))
    return false;
  text.remove_prefix(number.size());
  return true;
}

}  // namespace

const MetricsRecord& RecordParser::parse(std::string_view line) {
  if (!fields_.empty() && parse_alike(line)) return record_;
  fields_.clear();
  record_ = parse_metrics_record(line);
  learn(line);
  return record_;
}

bool RecordParser::parse_alike(std::string_view line) {
  char before = '{';
  for (const Field& field : fields_) {
    if (!line.starts_with(before) || !line.substr(1).starts_with(field.head)) return false;
    line.remove_prefix(1 + field.head.size());
    if (field.value) {
      if (!take_number(line, *field.value)) return false;
    } else {
      if (!begins_number(line)) return false;
      const char* const end = line.data() + line.size();
      const auto [at, error] = std::from_chars(line.data(), end, record_.step);
      if (error != std::errc()) return false;
      line.remove_prefix(size_t(at - line.data()));
    }
    before = ',';
  }
  if (line != "}") return false;
  record_.values.find("step")->second = double(record_.step);
  return true;
}

// Notes the line's keys in their order, if all of its values are numbers or null.
void RecordParser::learn(std::string_view line) {
  std::vector<Field> fields;
  for (char before = '{'; line != "}"; before = ',') {
    if (!line.starts_with(before) || !line.substr(1).starts_with('"')) return;
    line.remove_prefix(1);
    const size_t colon = line.find("\":");
    if (colon == std::string_view::npos) return;
    const std::string_view key = line.substr(1, colon - 1);
    const auto value = record_.values.find(key);
    if (key.find('\\') != std::string_view::npos || value == record_.values.end()) return;
    fields.push_back({.head = std::string(line.substr(0, colon + 2)),
                      .value = key == "step" ? nullptr : &value->second});
    line.remove_prefix(colon + 2);
    double ignored = 0;
    if (!take_number(line, ignored)) return;
  }
  if (fields.size() == record_.values.size()) fields_ = std::move(fields);
}

RecordStream::RecordStream(fs::path path, Sink sink)
    : path_(std::move(path)), sink_(std::move(sink)) {}

void RecordStream::reset() {
  read_ = line_ = damaged_count_ = 0;
  rest_.clear();
  too_long_ = false;
  damaged_.clear();
  last_.reset();
  sink_.restart();
}

void RecordStream::poll() {
  const RegularFile file = open_regular_file(path_);
  const std::unique_ptr<const int, void (*)(const int*)> closer(
      &file.fd, [](const int* fd) { ::close(*fd); });
  struct stat info {};
  ::fstat(file.fd, &info);
  // A run that resumes replaces the file by one without the steps that it repeats.
  if (info.st_dev != device_ || info.st_ino != inode_ || file.size < read_) {
    if (inode_ != 0) reset();
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  std::string block(kBlock, '\0');
  while (true) {
    const ssize_t n = ::pread(file.fd, block.data(), block.size(), read_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw UserError(fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno)));
    if (n == 0) break;
    if (sink_.progress && read_ + n < file.size)
      sink_.progress(double(read_ + n) / double(file.size));
    std::string_view bytes(block.data(), size_t(n));
    for (size_t newline; (newline = bytes.find('\n')) != std::string_view::npos;) {
      const int64_t begin = read_ - int64_t(rest_.size());
      rest_ += bytes.substr(0, newline);
      read_ += int64_t(newline) + 1;
      bytes.remove_prefix(newline + 1);
      ++line_;
      take(rest_, begin);
      rest_.clear();
      too_long_ = false;
    }
    read_ += int64_t(bytes.size());
    if (rest_.size() + bytes.size() > kLongestLine) too_long_ = true;
    if (too_long_)
      rest_.clear();
    else
      rest_ += bytes;
  }
  // A file that another program wrote may end without a newline.
  if (!too_long_ && rest_.ends_with('}')) {
    try {
      sink_.record(parser_.parse(rest_), read_ - int64_t(rest_.size()), read_);
      rest_.clear();
    } catch (const UserError&) {
      return;  // the rest of the line has not been written yet
    }
  }
}

void RecordStream::take(std::string_view line, int64_t begin) {
  const std::string_view text = trim(line);
  if (text.empty() && !too_long_) return;
  if (last_) {
    if (damaged_.size() < kMaxDamaged) damaged_.push_back(std::move(*last_));
    last_.reset();
    ++damaged_count_;
  }
  try {
    if (too_long_) throw UserError("it is too long for a record");
    sink_.record(parser_.parse(text), begin, begin + int64_t(line.size()));
  } catch (const UserError& e) {
    const std::string& why = e.message();
    last_ = DamagedLine{line_, why.starts_with(": ") ? why.substr(2) : why};
  }
}

void Series::cut_from(int64_t step) {
  while (!steps.empty() && steps.back() >= step) {
    steps.pop_back();
    values.pop_back();
  }
}

RunMetrics::RunMetrics(const fs::path& path, std::vector<std::string> keys,
                       std::function<void(double part)> progress)
    : stream_(path,
              {.record = [this](const MetricsRecord& record, int64_t, int64_t) { take(record); },
               .restart = [this] { restart(); },
               .progress = std::move(progress)}) {
  for (std::string& key : keys) series_[std::move(key)];
}

void RunMetrics::restart() {
  for (auto& [key, series] : series_) series = {};
  keys_.clear();
  rates_ = times_ = {};
  records_ = last_step_ = total_steps_ = 0;
}

void RunMetrics::take(const MetricsRecord& record) {
  ++records_;
  for (auto& [key, series] : series_)
    if (!record.evaluation || is_evaluation(key)) series.cut_from(record.step);
  for (const auto& [key, value] : record.values) {
    keys_.insert(key);
    const auto series = series_.find(key);
    if (series == series_.end() || (record.evaluation && !is_evaluation(key))) continue;
    series->second.steps.push_back(record.step);
    series->second.values.push_back(value);
  }
  if (record.evaluation) {
    last_step_ = std::max(last_step_, record.step);
    return;
  }
  last_step_ = record.step;
  const auto add = [&](const char* key, Series& last) {
    last.cut_from(record.step);
    const auto value = record.values.find(key);
    if (value == record.values.end()) return;
    last.steps.push_back(record.step);
    last.values.push_back(value->second);
    if (last.steps.size() <= size_t(kLastSteps)) return;
    last.steps.erase(last.steps.begin());
    last.values.erase(last.values.begin());
  };
  add("tokens_per_s", rates_);
  add("step_ms", times_);
  const auto total = record.values.find("total_steps");
  if (total != record.values.end() && total->second > 0 && total->second < 1e15)
    total_steps_ = int64_t(total->second);
}

double RunMetrics::tokens_per_s() const { return mean(rates_); }

double RunMetrics::seconds_left() const {
  return total_steps_ > 0
             ? mean(times_) * 1e-3 * double(std::max<int64_t>(0, total_steps_ - last_step_))
             : kNoValue;
}

void warn_of_damage(const RecordStream& stream) {
  const std::string file = stream.path().string();
  for (const DamagedLine& line : stream.damaged())
    log::warn(fmt::format("{}, line {}: {}; it is skipped", file, line.line, line.why));
  const int64_t more = stream.damaged_count() - int64_t(stream.damaged().size());
  if (more > 0) log::warn(fmt::format("{}: {} more damaged lines are skipped", file, more));
}

UserError no_records(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) == 0 && !error)
    return UserError(
        fmt::format("{} is empty: the run has not finished its first step", path.string()),
        "try again later, or let --follow wait for it");
  return UserError(fmt::format("{} has no record of a step", path.string()),
                   "give the folder of a run, or its metrics.jsonl");
}

UserError unknown_key(std::string_view key, const std::set<std::string, std::less<>>& known) {
  const std::string gist = fmt::format("--key {}: no record has this key", key);
  if (const MetricKey* row = find_metric_key(key); row && !row->when.empty())
    return UserError(gist, fmt::format("records have it only if: {}", row->when));
  if (is_evaluation(key)) return UserError(gist, "no evaluation has been made yet");
  const std::vector<std::string> keys(known.begin(), known.end());
  if (const std::string meant = nearest(key, keys); !meant.empty())
    return UserError(gist, fmt::format("did you mean {}?", meant));
  std::string list;
  for (const std::string& each : keys) list += (list.empty() ? "" : ", ") + each;
  return UserError(gist, "the keys are " + list);
}

fs::path locate_metrics(const fs::path& run) {
  std::error_code error;
  if (!fs::exists(run, error)) {
    const fs::path plain = run.filename().empty() ? run.parent_path() : run;
    const fs::path parent = plain.has_parent_path() ? plain.parent_path() : fs::path(".");
    const std::string meant = nearest(plain.filename().string(), names_in(parent, false));
    throw UserError(fmt::format("{}: there is no such file or folder", run.string()),
                    meant.empty()
                        ? "give the folder of a run, such as runs/quickstart"
                        : fmt::format("did you mean {}?", (plain.parent_path() / meant).string()));
  }
  if (!fs::is_directory(run, error)) return run;
  if (is_file(run / kFile)) return run / kFile;
  // Checkpoints are in the run folder unless checkpoint.dir is set.
  const fs::path whole = fs::weakly_canonical(run, error);
  const bool checkpoint = is_file(run / "index.json") || is_file(run / "manifest.json");
  if (checkpoint && is_file(whole.parent_path().parent_path() / kFile))
    return whole.parent_path().parent_path() / kFile;
  if (is_file(run / "latest") && is_file(whole.parent_path() / kFile))
    return whole.parent_path() / kFile;
  std::string below;
  for (const std::string& name : names_in(run, true))
    below += fmt::format("{}{}", below.empty() ? "" : ", ", (run / name).string());
  throw UserError(fmt::format("{}: there is no {} in this folder", run.string(), kFile),
                  below.empty() ? "give the run folder, which `train.run_dir` names; a run makes "
                                  "the file before its first step"
                                : "the runs in it are " + below);
}

}  // namespace mtrain::observe
