// Values of another source that are checked when they are read.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "storage/value_source.h"

namespace mtrain::storage {

// Reads from `from`, which must outlive this object. A value that is not finite is an error that
// names its tensor and element. It is a UserError in a model that the user gives, and a RunError in
// a checkpoint, since no run saves such values. Several threads read a long run of elements: if its
// pages are in memory, one core limits the reading and the conversion to fp32.
class FiniteValues : public ValueSource {
 public:
  enum class Of { given_model, checkpoint };
  explicit FiniteValues(const ValueSource& from, Of of = Of::given_model);

  bool contains(std::string_view name) const override { return from_.contains(name); }
  Shape shape(std::string_view name) const override { return from_.shape(name); }
  std::string origin(std::string_view name) const override { return from_.origin(name); }
  bool finite() const override { return true; }
  void expect(std::vector<ExpectedRun> runs) const override { from_.expect(std::move(runs)); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const ValueSource& from_;
  const Of of_;
  mutable ThreadPool pool_;
};

}  // namespace mtrain::storage
