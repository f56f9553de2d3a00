// Launches as a JSON trace for chrome://tracing and Perfetto:
// one process per rank, one track per stream.
#pragma once
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"

namespace mtrain {

class ChromeTrace : public TimingSink {
 public:
  // max_events bounds the memory, 32 bytes each; what comes later is counted, and the trace says
  // so.
  explicit ChromeTrace(int rank = 0, size_t max_events = 1'000'000);

  void record(const Timing& timing) override;
  // What counts as time 0, of the clock that launches are timed with; the first event unless set.
  void set_origin(int64_t ns) { origin_ns_ = ns; }
  size_t events() const;
  size_t dropped() const;

  // May be called while launches go on; those recorded by then are in it. Throws RunError.
  void write(const std::filesystem::path& path) const;

 private:
  struct Entry {
    const std::string* name;
    int64_t begin_ns = 0, end_ns = 0;
    int32_t track = 0;
  };
  void add(Entry entry, std::string_view name, std::string_view track);
  std::string json(const Entry& entry, int64_t origin_ns) const;

  int rank_;
  std::optional<int64_t> origin_ns_;
  size_t max_events_;
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> names_;  // nodes stay where they are
  std::vector<std::string> tracks_;
  std::vector<Entry> entries_;
  size_t dropped_ = 0;
  int64_t full_at_ns_ = 0;  // when the first event was dropped
};

// One trace of several ranks', each as ChromeTrace writes it. Throws RunError.
void merge_traces(const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& parts);

}  // namespace mtrain
