// Values of another source that are looked at as they are read.
#pragma once
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "storage/value_source.h"

namespace mtrain::storage {

// Reads what `from` has, which must outlive it. A value that is not finite is an error that names
// its tensor and element: a UserError in a model that the user gives, a RunError in a checkpoint,
// which no run can have saved so. A long run of elements is read by several threads: pages that the
// system has in memory, and their conversion to fp32, take as long as a core needs.
class FiniteValues : public ValueSource {
 public:
  enum class Of { given_model, checkpoint };
  explicit FiniteValues(const ValueSource& from, Of of = Of::given_model);

  bool contains(std::string_view name) const override { return from_.contains(name); }
  Shape shape(std::string_view name) const override { return from_.shape(name); }
  std::string origin(std::string_view name) const override { return from_.origin(name); }
  bool finite() const override { return true; }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const ValueSource& from_;
  const Of of_;
  mutable ThreadPool pool_;
};

}  // namespace mtrain::storage
