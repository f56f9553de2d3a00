// Writes launches as a JSON trace for chrome://tracing and Perfetto, with one process per rank and
// one track per stream. The arguments of a span are its pass, with stage and micro-batch, and the
// bytes that a communication sends. Waits are spans of the category "wait". Memory is a counter.
// Arrows lead from each send to its receive: events "s" and "f" with the message's id, on the
// tracks of the two spans.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"

namespace mtrain::observe {

// Is called after each MiB that is read or written: a long trace takes a while. May be null.
using WroteTrace = std::function<void()>;

class ChromeTrace : public device::TimingSink {
 public:
  // Keeps at most `max_events` events of 48 bytes each. Later events are only counted; the trace
  // includes their number.
  explicit ChromeTrace(int rank = 0, size_t max_events = 1'000'000);

  // While it is off, launches, waits, spans and values are ignored.
  void set_recording(bool on) { recording_ = on; }
  void record(const device::Timing& timing) override;
  void waited(const device::Waiting& waiting) override;
  // Adds a span that the host has timed, such as a step or a save, to the track of the steps.
  void record_step(std::string_view name, int64_t begin_ns, int64_t end_ns);
  // Adds a value of a counter, in bytes.
  void record_bytes(std::string_view name, int64_t at_ns, int64_t bytes);
  // Sets the time 0 of the trace, on the clock of the launches' timings. By default time begins
  // with the first event.
  void set_origin(int64_t ns) { origin_ns_ = ns; }
  size_t events() const;
  size_t dropped() const;

  // Writes the recorded events; launches may continue during the call. Throws RunError.
  void write(const std::filesystem::path& path, const WroteTrace& wrote = {}) const;

 private:
  struct Entry {
    const std::string* name = nullptr;
    const std::string* action = nullptr;  // "3F12"; null: no action of a pipeline's rank
    int64_t begin_ns = 0, end_ns = 0;
    int64_t bytes = 0;
    int32_t track = 0;
    enum class Kind : uint8_t { span, wait, counter, send, receive } kind = Kind::span;
    uint64_t message() const { return uint64_t(bytes); }  // the id, of a send or a receive
  };
  using Track = std::optional<device::StreamId>;  // a stream; absent for the track of the steps
  void add(Entry entry, std::string_view name, Track track, std::string_view scope);
  const std::string* known(std::string_view text);
  std::string json(const Entry& entry, int64_t origin_ns) const;

  int rank_;
  std::atomic<bool> recording_ = true;
  std::optional<int64_t> origin_ns_;
  size_t max_events_;
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> texts_;  // entries point to its elements, which do not move
  std::vector<Track> tracks_;
  std::vector<Entry> entries_;
  size_t dropped_ = 0;
  int64_t full_at_ns_ = 0;  // when the first dropped event began
};

// Merges the traces of several ranks, which ChromeTrace has written, into one. An arrow of which
// only one end is in the parts is left out. Throws RunError.
void merge_traces(const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& parts, const WroteTrace& wrote = {});

}  // namespace mtrain::observe
