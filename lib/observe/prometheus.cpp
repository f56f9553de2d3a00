#include "observe/prometheus.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/regular_file.h"

namespace mtrain::observe {

namespace {

// An evaluation comes at most some hundred records before the end, of about 2 KB each.
constexpr int64_t kTail = 512 << 10;

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// A metric's samples must stand together, after its help and type.
class PrometheusText {
 public:
  void begin(std::string_view name, std::string_view help, std::string_view type = "gauge") {
    name_ = name;
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  void add(double value, std::string_view labels = "") {
    const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
    text_ += fmt::format("{}{} {}\n", name_, braces, number_text(value));
  }
  void one(std::string_view name, std::string_view help, std::optional<double> value,
           std::string_view type = "gauge") {
    if (!value) return;
    begin(name, help, type);
    add(*value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

// A value of a record, and the metric that has it.
struct RecordMetric {
  std::string_view key, name, help;
  double factor = 1;
};

constexpr RecordMetric kOfSteps[] = {
    {"step", "mtrain_step", "Number of the newest recorded step."},
    {"total_steps", "mtrain_planned_steps", "Number of steps of the run."},
    {"loss", "mtrain_loss", "Training loss in nats per token, mean over the global batch."},
    {"grad_norm", "mtrain_gradient_norm", "Norm of the gradient before clipping."},
    {"lr", "mtrain_learning_rate", "Learning rate of the step."},
    {"loss_scale", "mtrain_loss_scale", "Factor of the loss in fp16."},
    {"tokens", "mtrain_tokens", "Tokens since step 1."},
    {"tokens_per_s", "mtrain_tokens_per_second", "Tokens of the step over its time."},
    {"mfu", "mtrain_mfu_ratio", "FLOP/s of the model over the peak of all ranks' devices."},
    {"step_ms", "mtrain_step_seconds", "Time of the step.", 1e-3},
    {"step_ms.max", "mtrain_step_longest_seconds", "Time of the step on the slowest rank.", 1e-3},
    {"memory_peak.max", "mtrain_memory_peak_largest_bytes",
     "Largest memory since the start on the rank that needs most."},
    {"memory_planned", "mtrain_memory_planned_bytes", "Planned memory of that rank."},
    {"comm.exposed_ms.max", "mtrain_exposed_longest_seconds",
     "Time in which compute waited for communication, on the rank where it was longest.", 1e-3},
    {"moe.load_max", "mtrain_expert_load_largest_ratio",
     "Largest load of an expert over its layer's mean."},
};

void add_records(const NewestRecords& records, double now, PrometheusText& out) {
  if (const auto& evaluation = records.evaluation) {
    const auto loss = evaluation->values.find("validation_loss");
    if (loss != evaluation->values.end())
      out.one("mtrain_validation_loss", "Validation loss in nats per token.", loss->second);
  }
  if (!records.step) return;
  const auto& values = records.step->values;
  for (const RecordMetric& metric : kOfSteps) {
    const auto found = values.find(metric.key);
    if (found != values.end()) out.one(metric.name, metric.help, found->second * metric.factor);
  }
  if (const auto time = values.find("time"); time != values.end())
    out.one("mtrain_record_age_seconds", "Time since the newest step was recorded.",
            std::max(0.0, now - time->second));
  // comm.<kind>.exposed_ms of rank 0.
  constexpr std::string_view kBegin = "comm.", kEnd = ".exposed_ms";
  bool begun = false;
  for (const auto& [key, value] : values) {
    const std::string_view name = key;
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) ||
        name.size() <= kBegin.size() + kEnd.size())
      continue;
    if (!std::exchange(begun, true))
      out.begin("mtrain_exposed_communication_seconds",
                "Time in which rank 0's compute waited for communication of this kind.");
    const auto kind = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
    out.add(value * 1e-3, fmt::format("kind=\"{}\"", kind));
  }
}

struct RankMetric {
  std::string_view name, help, type;
  double (*value)(const PulseState& rank, double now);  // NaN: unknown
};

double known(double value, bool is_known) { return is_known ? value : std::nan(""); }

constexpr RankMetric kOfRanks[] = {
    {"mtrain_rank_step", "Step that the rank makes, or has made last.", "gauge",
     [](const PulseState& r, double) { return double(r.step); }},
    {"mtrain_rank_step_seconds", "Time of the rank's last step.", "gauge",
     [](const PulseState& r, double) { return known(r.step_s, r.step_s > 0); }},
    {"mtrain_rank_median_step_seconds", "Median time of the rank's last steps.", "gauge",
     [](const PulseState& r, double) { return known(r.median_step_s, r.median_step_s > 0); }},
    {"mtrain_rank_phase_seconds", "Time since the rank's phase began.", "gauge",
     [](const PulseState& r, double now) {
       return known(std::max(0.0, now - r.began), r.began > 0);
     }},
    {"mtrain_rank_memory_bytes", "Memory of the rank on its device.", "gauge",
     [](const PulseState& r, double) { return double(r.memory); }},
    {"mtrain_rank_memory_peak_bytes", "Largest memory of the rank since its start.", "gauge",
     [](const PulseState& r, double) { return double(r.memory_peak); }},
    {"mtrain_rank_exposed_seconds", "Exposed communication of the rank's last step.", "gauge",
     [](const PulseState& r, double) { return known(r.exposed_s, r.exposed_s >= 0); }},
    {"mtrain_rank_launches_total", "Operations that the rank's process has enqueued.", "counter",
     [](const PulseState& r, double) { return double(r.launches); }},
};

void add_ranks(const std::vector<PulseState>& ranks, double now, PrometheusText& out) {
  if (ranks.empty()) return;
  const auto label = [](const PulseState& r) { return fmt::format("rank=\"{}\"", r.rank); };
  for (const RankMetric& metric : kOfRanks) {
    out.begin(metric.name, metric.help, metric.type);
    for (const PulseState& r : ranks)
      if (const double value = metric.value(r, now); !std::isnan(value)) out.add(value, label(r));
  }
  out.begin("mtrain_rank_phase", "1 for the phase in which the rank is, 0 for the others.");
  for (const PulseState& r : ranks)
    for (int phase = 0; phase <= int(PulsePhase::end); ++phase)
      out.add(double(r.phase == PulsePhase(phase)),
              fmt::format("{},phase=\"{}\"", label(r), phase_name(PulsePhase(phase))));
}

}  // namespace

namespace {

// Whether two records are of the same start: the time since its begin rises.
bool same_start(const MetricsRecord& earlier, const MetricsRecord& later) {
  const auto time = [](const MetricsRecord& r) {
    const auto found = r.values.find("elapsed_s");
    return found == r.values.end() ? 0 : found->second;
  };
  return !(time(earlier) > time(later));
}

}  // namespace

NewestRecords newest_records(const std::filesystem::path& path) {
  NewestRecords newest;
  std::string tail;
  try {
    const RegularFile file = open_regular_file(path);
    const int64_t from = std::max<int64_t>(0, file.size - kTail);
    tail.resize(size_t(file.size - from));
    const ssize_t n = pread(file.fd, tail.data(), tail.size(), from);
    close(file.fd);
    tail.resize(size_t(std::max<ssize_t>(n, 0)));
  } catch (const Error&) {
    return newest;
  }
  RecordParser parser;
  bool complete = false;  // the records of another start follow
  // The first line may lack its beginning, and the last one its end; they are not records then.
  for (size_t end = tail.size(); end > 0 && !(complete && newest.evaluation);) {
    const size_t newline = tail.rfind('\n', end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin < end) {
      try {
        const MetricsRecord& record =
            parser.parse(std::string_view(tail).substr(begin, end - begin));
        auto& place = record.evaluation ? newest.evaluation : newest.step;
        if (!place) {
          place = record;
        } else if (!record.evaluation && !complete) {
          complete = !same_start(record, *place);
          if (!complete) place->values.insert(record.values.begin(), record.values.end());
        }
      } catch (const UserError&) {
      }
    }
    end = newline == std::string::npos ? 0 : newline;
  }
  return newest;
}

std::string prometheus_text(const JobSample& job, double now) {
  PrometheusText out;
  out.one("mtrain_job_running", "1 while the ranks of this host run, 0 between two starts.",
          double(job.running));
  out.one("mtrain_restarts_total", "Restarts of all ranks by this launcher.", double(job.restarts),
          "counter");
  add_records(job.records, now, out);
  if (job.checkpoint_step)
    out.one("mtrain_checkpoint_step", "Step of the newest complete checkpoint.",
            double(*job.checkpoint_step));
  out.one("mtrain_checkpoint_age_seconds", "Time since the newest checkpoint was complete.",
          job.checkpoint_age_s);
  out.one("mtrain_files_age_seconds",
          "Time since records and checkpoints were read; it rises while the file system stalls.",
          job.files_age_s);
  add_ranks(job.ranks, now, out);
  return out.take();
}

}  // namespace mtrain::observe
