// Measures the processor time that watching a run costs in a step: the pulse with the flight
// recorder, metrics.jsonl, TensorBoard's files, and the endpoint for Prometheus.
//   bench_observe [launches of a step] [ranks of a host] [seconds between scrapes]   default: 400 8
//   15
// The code of each part runs many times on its own, so its time does not depend on how busy the
// machine is. All threads of the process are counted.
#include <time.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/pulse.h"
#include "device/device.h"
#include "device/flight_recorder.h"
#include "observe/metrics.h"
#include "observe/prometheus.h"
#include "observe/tensorboard.h"

using namespace mtrain;

namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Returns the microseconds of a call: the least of several rounds.
double cost_us(int calls, const std::function<void(int)>& call) {
  constexpr int kRounds = 7;
  double least = 1e300;
  for (int round = 0; round < kRounds; ++round) {
    const double began = processor_seconds();
    for (int i = 0; i < calls; ++i) call(round * calls + i + 1);
    least = std::min(least, (processor_seconds() - began) / calls);
  }
  return 1e6 * least;
}

// A record of a rank in several groups, whose step is timed.
std::vector<observe::Metric> record_of(int step) {
  std::vector<observe::Metric> metrics;
  for (const char* key : {"loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "mfu"})
    metrics.push_back({key, 1.0 / (step + 7)});
  for (const char* key : {"tokens", "total_steps", "memory_peak", "memory_peak.activations",
                          "memory_peak.buffers", "memory_planned"})
    metrics.push_back({key, int64_t(step) * 12345});
  for (const char* key :
       {"comm.tp.busy_ms", "comm.tp.exposed_ms", "comm.tp.idle_ms", "comm.dp_grad.busy_ms",
        "comm.dp_grad.exposed_ms", "comm.dp_grad.idle_ms", "comm.pp.busy_ms", "comm.pp.exposed_ms",
        "comm.pp.idle_ms", "compute.busy_ms", "compute.starved_ms", "step_ms.max",
        "memory_peak.max", "compute.busy_ms.max"})
    metrics.push_back({key, 3.0 / (step + 5)});
  for (const char* key : {"step_ms.max_rank", "memory_peak.max_rank", "compute.busy_ms.max_rank"})
    metrics.push_back({key, int64_t(step % 8)});
  return metrics;
}

}  // namespace

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 400,
            ranks = argc > 2 ? std::atoi(argv[2]) : 8;
  const double between_s = argc > 3 ? std::atof(argv[3]) : 15;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("mtrain-bench-{}", processor_seconds());
  std::filesystem::create_directories(folder);

  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  const std::shared_ptr<Pulse> pulse = Pulse::make(0);
  device->recorder().show_in(pulse);
  const double of_pulse = cost_us(500, [&](int step) {
    pulse->at(PulsePhase::step, step);
    for (int i = 0; i < launches; ++i)
      device->recorder().record("matmul_fwd", compute, uint64_t(step) * uint64_t(launches));
    device->recorder().update();  // at least as often as every 250 ms of a run
    pulse->step_done(0.01);
    pulse->set_memory(step, step);
    pulse->set_exposed(0.001);
  });
  std::vector<std::pair<const char*, double>> rows{{"pulse, flight recorder", of_pulse}};

  observe::MetricsWriter metrics(folder / "metrics.jsonl", 0);
  rows.emplace_back("metrics.jsonl",
                    cost_us(2000, [&](int step) { metrics.write(step, record_of(step)); }));
  observe::TensorboardWriter tensorboard(folder / "tb", 0, "model: {}\n");
  rows.emplace_back("TensorBoard",
                    cost_us(2000, [&](int step) { tensorboard.write(step, record_of(step)); }));
  size_t bytes = 0;
  const double scrape = cost_us(200, [&](int) {
    observe::JobSample sample;
    for (int r = 0; r < ranks; ++r) sample.ranks.push_back(pulse->state());
    sample.records = observe::newest_records(folder / "metrics.jsonl");
    bytes += observe::prometheus_text(sample, 1e9).size();
  });
  double sum = 0;
  fmt::print("{} launches in a step, {} ranks on the host\n", launches, ranks);
  for (const auto& [name, us] : rows) {
    fmt::print("{:<24} {:>9.1f} us of a step\n", name, us);
    sum += us;
  }
  fmt::print("{:<24} {:>9.1f} us of a scrape, {:.5f} % of a core every {} s\n",
             "page of the endpoint", scrape, scrape * 1e-4 / between_s, between_s);
  for (const double step_ms : {10.0, 50.0, 250.0, 1000.0}) {
    const double share = sum / (1e3 * step_ms) + scrape * 1e-6 / between_s;
    fmt::print("a step of {:>5} ms: {:.4f} %\n", step_ms, 100 * share);
  }
  std::filesystem::remove_all(folder);
  return bytes > 0 ? 0 : 1;
}
