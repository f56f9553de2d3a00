#include "model/param/wgrad_queue.h"

#include <cstddef>
#include <utility>

#include "base/error.h"
#include "model/param/parameters.h"

namespace mtrain::model {

void WgradQueue::push(Entry entry) {
  if (!reports_) entry.completes.clear();
  if (holding_)
    held_.push_back(std::move(entry));
  else
    finish(entry);
}

void WgradQueue::ready(Parameter& p) {
  if (reports_) complete(p);
}

void WgradQueue::complete(Parameter& p) {
  if (on_ready_ && !p.frozen) on_ready_(p);
}

void WgradQueue::hold(bool on) { holding_ = on; }

size_t WgradQueue::drain(size_t max_entries) {
  size_t ran = 0;
  for (; ran < max_entries && !held_.empty(); ++ran) {
    Entry entry = std::move(held_.front());
    held_.pop_front();
    finish(entry);
  }
  return ran;
}

void WgradQueue::drain_after(size_t kept) {
  if (held_.size() > kept) drain_after(kept, held_.size() - kept);
}

void WgradQueue::drain_after(size_t kept, size_t count) {
  for (size_t ran = 0; ran < count; ++ran) {
    MT_CHECK(held_.size() > kept, "{} weight gradients are held, all of the {} oldest",
             held_.size(), kept);
    Entry entry = std::move(held_[kept]);
    held_.erase(held_.begin() + std::ptrdiff_t(kept));
    finish(entry);
  }
}

void WgradQueue::hand_over(WgradQueue& other) {
  for (Entry& entry : held_) other.held_.push_back(std::move(entry));
  held_.clear();
}

void WgradQueue::finish(Entry& entry) {
  entry.run();
  for (Parameter* p : entry.completes) complete(*p);
}

}  // namespace mtrain::model
