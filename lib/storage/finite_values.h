// Values of another source that are looked at as they are read.
#pragma once
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "storage/value_source.h"

namespace mtrain::storage {

// Reads what `from` has, which must outlive it. A value that is not finite is a UserError that
// names its tensor and element. A long run of elements is read by several threads: pages that the
// system has in memory, and their conversion to fp32, take as long as a core needs.
class FiniteValues : public ValueSource {
 public:
  explicit FiniteValues(const ValueSource& from);

  bool contains(std::string_view name) const override { return from_.contains(name); }
  Shape shape(std::string_view name) const override { return from_.shape(name); }
  std::string origin(std::string_view name) const override { return from_.origin(name); }
  bool finite() const override { return true; }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  const ValueSource& from_;
  mutable ThreadPool pool_;
};

}  // namespace mtrain::storage
