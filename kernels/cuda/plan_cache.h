// A cache of a library's plans: one for each kind of call, made once.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>

namespace mtrain::kernels::cuda {

// The plan of each key, made once. Thread-safe; two threads that request a new key make only one
// plan.
template <class Key, class Plan>
class PlanCache {
 public:
  // Returns the key's plan. The first call makes it by make(). If make() throws, the next call
  // calls it again.
  template <class Make>
  Plan get(const Key& key, const Make& make) {
    std::lock_guard lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    return plans_.emplace(key, make()).first->second;
  }
  // Replaces the key's plan by replace(plan), and returns the new plan.
  template <class Replace>
  Plan change(const Key& key, const Replace& replace) {
    std::lock_guard lock(mutex_);
    Plan& plan = plans_.at(key);
    return plan = replace(plan);
  }
  // Removes the key's plan: the next call for the key makes a new one.
  void forget(const Key& key) {
    std::lock_guard lock(mutex_);
    plans_.erase(key);
  }
  template <class Visit>
  void each(const Visit& visit) const {
    std::lock_guard lock(mutex_);
    for (const auto& [key, plan] : plans_) visit(key, plan);
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return plans_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, Plan> plans_;
};

}  // namespace mtrain::kernels::cuda
