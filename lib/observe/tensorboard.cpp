#include "observe/tensorboard.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <tensorboard_event.pb.h>

#include "base/error.h"
#include "base/strings.h"
#include "observe/tfrecord.h"

namespace mtrain::observe {

namespace fs = std::filesystem;

namespace {

constexpr const char* kVersion = "brain.Event:2";
constexpr const char* kFilePrefix = "events.out.tfevents.";
constexpr const char *kGradNorm = "grad_norm", *kHistogram = "grad_norm/histogram";
constexpr int64_t kHistogramSteps = 100;
constexpr size_t kBuckets = 30;

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

tensorboard::Event event_of(int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(seconds_since_epoch());
  event.set_step(step);
  return event;
}

std::string record_of(const tensorboard::Event& event) {
  return tfrecord(event.SerializeAsString());
}

// TensorBoard reads the files of a folder in the order of their names, which begin with the time.
// The new name is therefore later than all others, even if the clock was set back.
fs::path new_file(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw RunError(fmt::format("cannot make {}: {}", folder.string(), error.message()),
                   "check train.tensorboard_dir");
  int64_t time = int64_t(seconds_since_epoch());
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kFilePrefix))
      time =
          std::max(time, 1 + int64_t(std::atoll(name.c_str() + std::string(kFilePrefix).size())));
  }
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return folder / fmt::format("{}{:010}.{}.{}", kFilePrefix, time, host, ::getpid());
}

// An indented text is shown as it is; Markdown would change one that is not indented.
std::string as_code(std::string_view text) {
  std::string out;
  for (const std::string& line : split(std::string(text), '\n')) out += "    " + line + "\n";
  return out;
}

std::string recipe_record(int64_t step, std::string_view recipe) {
  tensorboard::Event event = event_of(step);
  auto& value = *event.mutable_summary()->add_value();
  value.set_tag("recipe");
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value.mutable_tensor()->set_dtype(tensorboard::TensorProto::DT_STRING);
  value.mutable_tensor()->mutable_tensor_shape();
  value.mutable_tensor()->add_string_val(as_code(recipe));
  return record_of(event);
}

}  // namespace

std::string tensorboard_tag(std::string_view metric) {
  std::string tag(metric);
  std::ranges::replace(tag, '.', '/');
  return tag;
}

TensorboardWriter::TensorboardWriter(const fs::path& folder, int64_t steps_done,
                                     std::string_view recipe)
    : file_(new_file(folder)) {
  tensorboard::Event version = event_of(0), start = event_of(steps_done + 1);
  version.set_file_version(kVersion);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  file_.append(record_of(version) + record_of(start) + recipe_record(steps_done, recipe));
}

TensorboardWriter::~TensorboardWriter() {
  if (!norms_.empty()) file_.append(take_histogram());
}

void TensorboardWriter::write(int64_t step, const std::vector<Metric>& metrics) {
  tensorboard::Event event = event_of(step);
  for (const Metric& metric : metrics) {
    const auto* real = std::get_if<double>(&metric.value);
    const auto* integer = std::get_if<int64_t>(&metric.value);
    if (!real && !integer) continue;
    const double number = real ? *real : double(*integer);
    auto& value = *event.mutable_summary()->add_value();
    value.set_tag(tensorboard_tag(metric.name));
    value.set_simple_value(float(number));
    if (metric.name != kGradNorm) continue;
    if (std::isfinite(number)) norms_.push_back(number);
    norms_end_ = step;
  }
  std::string records = record_of(event);
  if (!norms_.empty() && norms_end_ == step && step % kHistogramSteps == 0)
    records += take_histogram();
  file_.append(records);
}

std::string TensorboardWriter::take_histogram() {
  const std::vector<double> norms = std::exchange(norms_, {});
  const auto [least, most] = std::ranges::minmax(norms);
  tensorboard::Event event = event_of(norms_end_);
  auto& value = *event.mutable_summary()->add_value();
  value.set_tag(kHistogram);
  auto& histogram = *value.mutable_histo();
  histogram.set_min(least);
  histogram.set_max(most);
  histogram.set_num(double(norms.size()));
  const size_t buckets = most > least ? kBuckets : 1;
  std::vector<double> counts(buckets);
  double sum = 0, squares = 0;
  for (const double norm : norms) {
    sum += norm, squares += norm * norm;
    const double place = most > least ? (norm - least) / (most - least) * double(buckets) : 0;
    ++counts[std::min(buckets - 1, size_t(place))];
  }
  histogram.set_sum(sum);
  histogram.set_sum_squares(squares);
  for (size_t i = 0; i < buckets; ++i) {
    histogram.add_bucket_limit(
        i + 1 == buckets ? most : least + (most - least) * double(i + 1) / double(buckets));
    histogram.add_bucket(counts[i]);
  }
  return record_of(event);
}

}  // namespace mtrain::observe
