// Event files for TensorBoard hold what metrics.jsonl holds.
#include <sys/stat.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <tensorboard_event.pb.h>

#include "base/error.h"
#include "base/file.h"
#include "observe/metrics.h"
#include "observe/metrics_reader.h"
#include "observe/tensorboard.h"
#include "observe/tfrecord.h"
#include "test/support/temporary_folder.h"

namespace observe_tensorboard_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

uint64_t number(std::string_view bytes) {  // the lowest byte comes first
  uint64_t n = 0;
  for (size_t i = bytes.size(); i-- > 0;) n = n << 8 | uint8_t(bytes[i]);
  return n;
}

// Reads the records of a file, and checks their lengths and checksums.
std::vector<tensorboard::Event> events_of(const fs::path& file) {
  std::vector<tensorboard::Event> events;
  const std::string bytes = read_file(file);
  for (std::string_view rest = bytes; !rest.empty();) {
    REQUIRE(rest.size() >= 16);
    const auto length = size_t(number(rest.substr(0, 8)));
    REQUIRE(number(rest.substr(8, 4)) == masked_crc32c(rest.substr(0, 8)));
    REQUIRE(rest.size() >= 16 + length);
    const std::string_view data = rest.substr(12, length);
    REQUIRE(number(rest.substr(12 + length, 4)) == masked_crc32c(data));
    REQUIRE(events.emplace_back().ParseFromArray(data.data(), int(data.size())));
    rest.remove_prefix(16 + length);
  }
  return events;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.insert(entry.path());
  return {files.begin(), files.end()};
}

using Scalars = std::map<std::pair<int64_t, std::string>, float>;  // by step and tag

// Reads a folder as TensorBoard does: file by file in the order of names, and a START voids its
// step and later ones.
Scalars scalars_in(const fs::path& folder) {
  Scalars scalars;
  for (const fs::path& file : files_in(folder)) {
    const auto events = events_of(file);
    REQUIRE(!events.empty());
    CHECK(events[0].file_version() == "brain.Event:2");
    for (const auto& event : events) {
      if (event.session_log().status() == tensorboard::SessionLog::START)
        std::erase_if(scalars, [&](const auto& s) { return s.first.first >= event.step(); });
      for (const auto& value : event.summary().value())
        if (value.value_case() == tensorboard::Summary::Value::kSimpleValue)
          REQUIRE(
              scalars.emplace(std::pair(event.step(), value.tag()), value.simple_value()).second);
    }
  }
  return scalars;
}

// The same of metrics.jsonl.
Scalars scalars_of(const fs::path& metrics) {
  Scalars scalars;
  RecordStream stream(metrics,
                      {.record =
                           [&](const MetricsRecord& record, int64_t, int64_t) {
                             for (const auto& [key, value] : record.values)
                               if (key != "step" && key != "time" && key != "elapsed_s")
                                 scalars[{record.step, tensorboard_tag(key)}] = float(value);
                           },
                       .restart = [] {}});
  stream.poll();
  return scalars;
}

void check_same(const Scalars& a, const Scalars& b) {
  CHECK(a.size() == b.size());
  for (const auto& [key, value] : a) {
    CAPTURE(key.first, key.second, value);
    REQUIRE(b.contains(key));
    const float other = b.at(key);
    CHECK((value == other || (std::isnan(value) && std::isnan(other))));
  }
}

std::vector<Metric> metrics_of(int64_t step) {
  std::vector<Metric> metrics{{"loss", step == 7 ? kNan : 4.0 / double(step)},
                              {"grad_norm", 1.0 + double(step % 10)},
                              {"tokens", step << 40},
                              {"memory_peak.activations", int64_t{123456789}}};
  if (step % 2 == 0) metrics.push_back({"comm.dp_grad.exposed_ms", 0.125});
  return metrics;
}

// Both files of a run, as a run writes them.
struct Run {
  MetricsWriter metrics;
  TensorboardWriter tensorboard;
  Run(const fs::path& folder, int64_t steps_done, const std::string& recipe = "train: {}\n")
      : metrics(folder / "metrics.jsonl", steps_done),
        tensorboard(folder / "tb", steps_done, recipe) {}
  void step(int64_t step) { write(step, metrics_of(step)); }
  void write(int64_t step, const std::vector<Metric>& record) {
    metrics.write(step, record);
    tensorboard.write(step, record);
  }
};

}  // namespace

TEST_CASE("checksums of records are those of RFC 3720") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(masked_crc32c("123456789") ==
        uint32_t(((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8u));
  const std::string record = tfrecord("abc");
  CHECK(record.size() == 8 + 4 + 3 + 4);
  CHECK(record.substr(0, 8) == std::string("\3\0\0\0\0\0\0\0", 8));
}

TEST_CASE("TensorBoard gets every number of metrics.jsonl, by step and name") {
  const TemporaryFolder folder;
  Run run(folder.path, 0);
  for (int64_t step = 1; step <= 25; ++step) {
    run.step(step);
    if (step % 10 == 0)
      run.write(step, {{"validation_loss", 2.5}, {"validation_samples", int64_t{64}}});
  }
  const Scalars scalars = scalars_in(folder / "tb");
  CHECK(scalars.size() == 25 * 4 + 12 + 2 * 2);
  CHECK(scalars.at({3, "memory_peak/activations"}) == 123456789.0f);
  CHECK(scalars.at({4, "comm/dp_grad/exposed_ms"}) == 0.125f);
  CHECK(std::isnan(scalars.at({7, "loss"})));
  check_same(scalars, scalars_of(folder / "metrics.jsonl"));
}

TEST_CASE("a run that resumes voids the steps that it repeats, and keeps the others") {
  const TemporaryFolder folder;
  {
    Run run(folder.path, 0);
    for (int64_t step = 1; step <= 9; ++step) run.step(step);
  }
  for (const int64_t from : {6, 4}) {
    Run run(folder.path, from);
    for (int64_t step = from + 1; step <= from + 2; ++step)
      run.write(step, {{"loss", 100.0 + double(from)}});
  }
  CHECK(files_in(folder / "tb").size() == 3);
  const Scalars scalars = scalars_in(folder / "tb");
  CHECK(scalars.at({4, "loss"}) == 1.0f);
  CHECK(scalars.at({5, "loss"}) == 104.0f);
  CHECK_FALSE(scalars.contains({7, "loss"}));
  check_same(scalars, scalars_of(folder / "metrics.jsonl"));
}

TEST_CASE("a new file sorts after all others, even if the clock was set back") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "tb");
  std::ofstream(folder / "tb/events.out.tfevents.4000000000.host.1");
  std::ofstream(folder / "tb/notes.txt");
  { const TensorboardWriter writer(folder / "tb", 0, ""); }
  { const TensorboardWriter writer(folder / "tb", 0, ""); }
  const auto files = files_in(folder / "tb");
  REQUIRE(files.size() == 4);
  CHECK_THAT(files[1].filename().string(), Catch::StartsWith("events.out.tfevents.4000000001."));
  CHECK_THAT(files[2].filename().string(), Catch::StartsWith("events.out.tfevents.4000000002."));
}

TEST_CASE("TensorBoard shows the recipe as it is written") {
  const TemporaryFolder folder;
  { const Run run(folder.path, 12, "model:\n  init: \"`*x*`\"  # ö\n```\n"); }
  const auto events = events_of(files_in(folder / "tb").at(0));
  REQUIRE(events.size() == 3);
  CHECK(events[1].step() == 13);
  CHECK(events[2].step() == 12);
  const auto& value = events[2].summary().value(0);
  CHECK(value.tag() == "recipe");
  CHECK(value.metadata().plugin_data().plugin_name() == "text");
  CHECK(value.tensor().dtype() == tensorboard::TensorProto::DT_STRING);
  CHECK_THAT(value.tensor().string_val(0),
             Catch::StartsWith("    model:\n      init: \"`*x*`\"  # ö\n    ```\n"));
}

TEST_CASE("a histogram has the gradient norms of a hundred steps") {
  const TemporaryFolder folder;
  {
    Run run(folder.path, 50);
    for (int64_t step = 51; step <= 230; ++step)
      run.write(step, {{"grad_norm", step == 60 ? kNan : double(step % 10)}});
  }
  std::map<int64_t, tensorboard::HistogramProto> histograms;
  for (const auto& event : events_of(files_in(folder / "tb").at(0)))
    for (const auto& value : event.summary().value())
      if (value.has_histo()) histograms[event.step()] = value.histo();
  REQUIRE(histograms.size() == 3);
  CHECK(histograms.at(100).num() == 49);  // without the NaN
  CHECK(histograms.at(200).num() == 100);
  CHECK(histograms.at(230).num() == 30);
  const auto& h = histograms.at(200);
  CHECK(h.min() == 0);
  CHECK(h.max() == 9);
  CHECK(h.sum() == 450);
  CHECK(h.sum_squares() == 2850);
  REQUIRE(h.bucket_size() == h.bucket_limit_size());
  double counted = 0, before = -1;
  for (int i = 0; i < h.bucket_size(); ++i) {
    CHECK(h.bucket_limit(i) > before);
    before = h.bucket_limit(i);
    counted += h.bucket(i);
  }
  CHECK(before == 9);
  CHECK(counted == 100);
}

TEST_CASE("norms that are all equal have a histogram of one bucket") {
  const TemporaryFolder folder;
  {
    Run run(folder.path, 0);
    run.write(1, {{"grad_norm", 2.0}});
    run.write(2, {{"grad_norm", 2.0}});
  }
  const auto events = events_of(files_in(folder / "tb").at(0));
  const auto& h = events.back().summary().value(0).histo();
  REQUIRE(h.bucket_size() == 1);
  CHECK(h.bucket(0) == 2);
  CHECK(h.bucket_limit(0) == 2);
}

TEST_CASE("a folder that cannot be written is an error that names it") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file");
  CHECK_THROWS_WITH(TensorboardWriter(folder / "file/tb", 0, ""), Contains("file/tb"));
}

}  // namespace observe_tensorboard_test
