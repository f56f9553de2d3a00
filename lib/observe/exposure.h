// How much communication was hidden behind compute, and how much was not.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/stream.h"

namespace mtrain {

struct Communication {
  int64_t busy_ns = 0;     // its stream was at work
  int64_t exposed_ns = 0;  // the compute stream stood still for it
  int64_t bytes = 0;       // put on the link
  Communication& operator+=(const Communication& o);
};

// By kind ("dp_grad", "tp", "pp", ...): that is the stream, and a pipeline's streams are one kind.
// Every stream other than compute and copy communicates. Where a receive waits for a rank that has
// not come to send yet, that is no communication: a pipeline's bubble is not exposed time. Ranks
// that share memory know it; over other backends such waits are in the figures.
class Exposure : public TimingSink {
 public:
  using ByKind = std::map<std::string, Communication, std::less<>>;
  void record(const Timing& timing) override;
  void waited(const Waiting& waiting) override;
  ByKind take();  // since the last call

 private:
  struct Idle {
    int64_t begin_ns, end_ns;
  };
  std::mutex mutex_;
  ByKind since_;
  std::map<std::string, std::vector<Idle>, std::less<>> idle_;  // by stream, in the order of time
};

// "dp: 12.3 s at work, 1.1 s exposed (9 %), 4.2 GiB"
std::string exposure_text(const Exposure::ByKind& communication);

}  // namespace mtrain
