#include "device/flight_recorder.h"

#include <utility>

#include "base/error.h"

namespace mtrain::device {

namespace {
// A GPU asks its driver what has finished; therefore not every launch asks.
constexpr uint64_t kBetweenUpdates = 32;
}  // namespace

void FlightRecorder::show_in(std::shared_ptr<Pulse> pulse) {
  pulse_ = std::move(pulse);
  for (const auto& stream : streams_)
    if (stream) name(*stream);
}

void FlightRecorder::name(const Stream& stream) {
  const StreamKind kind = stream.id().kind;
  pulse_->name_stream(stream.index(), stream.name(),
                      kind != StreamKind::compute && kind != StreamKind::copy);
}

void FlightRecorder::record(const char* launch, const Stream& stream, uint64_t number) {
  if (const auto index = size_t(stream.index());
      index < streams_.size() && !streams_[index].load(std::memory_order_relaxed)) {
    name(stream);
    streams_[index] = &stream;
  }
  pulse_->launch(stream.index(), number, launch);
  if (++count_ % kBetweenUpdates == 0) update();
}

void FlightRecorder::update() {
  for (size_t i = 0; i < streams_.size(); ++i) try {
      if (const Stream* stream = streams_[i]) pulse_->set_done(int(i), stream->completed());
    } catch (const Error&) {  // the device has failed: its streams report that where they wait
    }
}

std::vector<std::string> FlightRecorder::lines(int last) {
  update();
  return launch_lines(pulse_->state(), last);
}

}  // namespace mtrain::device
