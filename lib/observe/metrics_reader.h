// Reads the metrics of a run, also while the run continues.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mtrain::observe {

// A record of metrics.jsonl: its numbers by key. NaN stands for null.
struct MetricsRecord {
  int64_t step = 0;
  bool evaluation = false;  // it is about an evaluation, not about a step
  std::map<std::string, double, std::less<>> values;
};
MetricsRecord parse_metrics_record(std::string_view line);  // throws UserError if it is not one

// Parses lines one after the other. A line with the keys of the line before, in their order, takes
// a sixth of the time: a file of a million steps has few others.
class RecordParser {
 public:
  // Returns a record that stays valid until the next call. Throws as parse_metrics_record().
  const MetricsRecord& parse(std::string_view line);

 private:
  // A key of the line before, with its quotes and colon, and where its value is.
  struct Field {
    std::string head;
    double* value = nullptr;
  };
  bool parse_alike(std::string_view line);
  void learn(std::string_view line);

  MetricsRecord record_;
  std::vector<Field> fields_;  // empty: the next line is parsed in full
};

// A line that is not a record.
struct DamagedLine {
  int64_t line = 0;  // from 1
  std::string why;
};

// Passes the records of a file to a sink in their order. Its memory does not grow with the file.
class RecordStream {
 public:
  struct Sink {
    // `begin` and `end` are the record's bytes in the file.
    std::function<void(const MetricsRecord& record, int64_t begin, int64_t end)> record;
    std::function<void()> restart;  // the file was replaced, and is read from its beginning
    std::function<void(double part)> progress = {};  // the part of a long file that has been read
  };
  RecordStream(std::filesystem::path path, Sink sink);

  // Reads what was appended to the file since the last call. An incomplete last line is kept for
  // the next call. Throws UserError if the file cannot be read.
  void poll();

  const std::filesystem::path& path() const { return path_; }
  // The first damaged lines, without the last line of the file, which may be incomplete.
  const std::vector<DamagedLine>& damaged() const { return damaged_; }
  int64_t damaged_count() const { return damaged_count_; }

 private:
  void take(std::string_view line, int64_t begin);
  void reset();

  const std::filesystem::path path_;
  const Sink sink_;
  RecordParser parser_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t read_ = 0, line_ = 0;  // bytes and lines of the file so far
  std::string rest_;             // an incomplete line, which begins at read_ - rest_.size()
  bool too_long_ = false;        // skips the rest of a line
  std::vector<DamagedLine> damaged_;
  std::optional<DamagedLine> last_;  // the last line so far, if it is damaged
  int64_t damaged_count_ = 0;
};

// The values of one key, in the order of steps. NaN stands for null.
struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;

  void cut_from(int64_t step);  // forgets this step and those after it
  bool empty() const { return steps.empty(); }
};

// The known metrics of a run: the values of some keys, and the last step. If a step occurs twice,
// the run was reset to it; the earlier records of this step and of later steps are dropped.
class RunMetrics {
 public:
  // `progress` may be empty.
  RunMetrics(const std::filesystem::path& path, std::vector<std::string> keys,
             std::function<void(double part)> progress = {});
  RunMetrics(const RunMetrics&) = delete;
  RunMetrics& operator=(const RunMetrics&) = delete;

  void poll() { stream_.poll(); }  // throws like RecordStream::poll()
  const RecordStream& stream() const { return stream_; }
  const Series& series(std::string_view key) const { return series_.at(std::string(key)); }
  const std::set<std::string, std::less<>>& keys() const { return keys_; }  // of all numbers so far
  bool empty() const { return records_ == 0; }
  int64_t last_step() const { return last_step_; }
  int64_t total_steps() const { return total_steps_; }  // 0 if unknown
  double tokens_per_s() const;                          // a mean of the last steps; NaN if unknown
  double seconds_left() const;  // estimated from the last steps; NaN if unknown

 private:
  void take(const MetricsRecord& record);
  void restart();

  RecordStream stream_;
  std::map<std::string, Series, std::less<>> series_;
  std::set<std::string, std::less<>> keys_;
  Series rates_, times_;  // tokens_per_s and step_ms of the last steps
  int64_t records_ = 0, last_step_ = 0, total_steps_ = 0;
};

// Warns of the lines that are skipped.
void warn_of_damage(const RecordStream& stream);

UserError no_records(const std::filesystem::path& path);  // for a file without a record
// Returns the error for a key that no record has. `known` are the existing keys.
UserError unknown_key(std::string_view key, const std::set<std::string, std::less<>>& known);

// Returns the file of metrics that `run` names: a run folder, a folder of its checkpoints or a
// checkpoint in it, or the file itself. Throws UserError if there is none.
std::filesystem::path locate_metrics(const std::filesystem::path& run);

}  // namespace mtrain::observe
