// A failure on purpose, in the middle of a rank's work: what it leaves behind can be tried out.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "device/device.h"
#include "recipe/debug.h"

namespace mtrain {

class Fault {
 public:
  Fault(const FaultConfig& config, int rank, Device& device);
  ~Fault();

  void before_step(int64_t step);  // of its update, from 1
  // What to call at each step of a save's commit; empty where nothing is due.
  std::function<void(std::string_view)> in_save(int64_t step) const;
  // After the step and its save. UserError where the step had no such launch.
  void after_step(int64_t step);

 private:
  struct Watch;
  void watch(const std::string& launch);
  bool is_due(int64_t step) const;
  void fail() const;

  const FaultConfig config_;
  const int rank_;
  Device& device_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace mtrain
