// Measures how fast a training is saved and loaded: scripts/bench/checkpoint_speed.py runs it
// beside fio. Ranks are threads of this process. Prints a line of JSON for each round.
//   bench_checkpoint <folder> <ranks> <rounds> <setting>...
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>

#include <fmt/core.h>

#include "comm/thread/thread_transport.h"
#include "data/dataset/dataset.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "run/run_checkpoint.h"
#include "train/build_trainer.h"

using namespace mtrain;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kVocab = 4096, kSeq = 16;  // of the step that gives moments their values

class Counting : public data::Dataset {
 public:
  void sample(int64_t index, data::Sample& out) const override {
    out = {};
    for (int64_t s = 0; s < kSeq; ++s) {
      out.input.push_back(int32_t((index * 7 + s) % kVocab));
      out.label.push_back(int32_t((index * 7 + s + 1) % kVocab));
      out.position.push_back(int32_t(s));
    }
  }
  int64_t size() const override { return 1000; }
  int64_t seq_length() const override { return kSeq; }
};

// The processor time of all threads of this process.
double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns a value of /proc/self/status in bytes.
int64_t memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  return 0;
}

// Makes VmHWM, the largest resident memory, begin at the present.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

// Removes the files from the system's page cache. Returns their bytes.
int64_t drop_cache(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    bytes += int64_t(entry.file_size());
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::fsync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
      std::fprintf(stderr, "%s stays in the page cache\n", entry.path().c_str());
    ::close(fd);
  }
  return bytes;
}

// Counts communication by stream and operation.
class Counters {
 public:
  void watch(Device& device) {
    device.set_launch_check([this](Stream& stream, const device::LaunchInfo& info) {
      const std::string on = device::stream_name(stream.id());
      if (on == "compute" || on == "copy") return;
      const std::scoped_lock lock(mutex_);
      ++counts_[on + " " + std::string(info.name)];
    });
  }
  std::string json() {
    const std::scoped_lock lock(mutex_);
    std::string text;
    for (const auto& [what, n] : counts_)
      text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", what, n);
    return "{" + text + "}";
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

void measure(const recipe::Recipe& r, int ranks, int rounds, const fs::path& folder) {
  std::map<int, Counters> counters;
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    const auto device = Device::cpu(1);
    train::Trainer t = train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                                            std::make_shared<Counting>(), world);
    const bool first = world.rank() == 0;
    t.step();  // moments other than zero
    device->synchronize();
    for (int round = 0; round < rounds; ++round) {
      const fs::path root = folder / fmt::format("round-{}", round);
      t.control().any(false);
      Counters own;
      if (first) own.watch(*device);
      auto begin = std::chrono::steady_clock::now();
      const double save_begin = processor_seconds();
      const fs::path saved = run::save_run(t, root);
      const double save = seconds_since(begin), save_cpu = processor_seconds() - save_begin;
      device->set_launch_check({});
      const fs::path from = t.control().texts(saved.string())[0];
      int64_t bytes = 0, before = 0;
      if (first) {
        bytes = drop_cache(from);
        forget_peak();
        before = memory("VmRSS");
      }
      t.control().any(false);
      begin = std::chrono::steady_clock::now();
      const double load_begin = processor_seconds();
      run::resume_run(t, from);
      device->synchronize();
      t.control().any(false);
      if (!first) continue;
      const double load = seconds_since(begin), load_cpu = processor_seconds() - load_begin;
      fmt::print(
          "{{\"bytes\": {}, \"save_s\": {:.4f}, \"load_s\": {:.4f}, \"save_cpu_s\": {:.2f}, "
          "\"load_cpu_s\": {:.2f}, \"peak_bytes\": {}, \"communication\": {}}}\n",
          bytes, save, load, save_cpu, load_cpu, memory("VmHWM") - before, own.json());
      std::fflush(stdout);
      fs::remove_all(root);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("bench_checkpoint <folder> <ranks> <rounds> <setting>...\n", stderr);
    return 2;
  }
  try {
    const int ranks = std::atoi(argv[2]);
    Diagnostics diagnostics;
    const recipe::Recipe r =
        plan::load_recipe_text(interchange::model_source(), "model: {}\n", "bench",
                               std::vector<std::string>(argv + 4, argv + argc), diagnostics, ranks);
    diagnostics.throw_if_errors();
    measure(r, ranks, std::atoi(argv[3]), argv[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
