// How much communication was hidden behind compute, and how much was not.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "device/stream.h"

namespace mtrain {

struct Communication {
  int64_t busy_ns = 0;     // its stream was at work
  int64_t exposed_ns = 0;  // the compute stream stood still for it
  int64_t bytes = 0;       // put on the link
  Communication& operator+=(const Communication& o);
};

// By stream ("dp", "tp", ...): every stream other than compute and copy communicates.
class Exposure : public TimingSink {
 public:
  using ByStream = std::map<std::string, Communication, std::less<>>;
  void record(const Timing& timing) override;
  void waited(const Waiting& waiting) override;
  ByStream take();  // since the last call

 private:
  std::mutex mutex_;
  ByStream since_;
};

// "dp: 12.3 s at work, 1.1 s exposed (9 %), 4.2 GiB"
std::string exposure_text(const Exposure::ByStream& communication);

}  // namespace mtrain
