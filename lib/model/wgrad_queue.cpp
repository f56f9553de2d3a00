#include "model/wgrad_queue.h"

#include <utility>

namespace mtrain {

void WgradQueue::push(Entry entry) {
  if (holding_)
    held_.push_back(std::move(entry));
  else
    finish(entry);
}

void WgradQueue::ready(Parameter& p) {
  if (on_ready_) on_ready_(p);
}

void WgradQueue::hold(bool on) { holding_ = on; }

size_t WgradQueue::drain(size_t most) {
  size_t ran = 0;
  for (; ran < most && !held_.empty(); ++ran) {
    Entry entry = std::move(held_.front());
    held_.pop_front();
    finish(entry);
  }
  return ran;
}

void WgradQueue::finish(Entry& entry) {
  entry.run();
  for (Parameter* p : entry.completes) ready(*p);
}

}  // namespace mtrain
