// A tensor that an optimizer keeps beside the parameters it updates, such as a moment. A rank keeps
// the elements that it owns of each unit.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "model/param/param_uploader.h"

namespace mtrain::optim {

// Elements of an owned range that follow each other and are updated in the same way: one kernel can
// update them. Unlike a model::Segment, it is not a part of a layer.
struct Segment {
  const model::OwnedRange* range;
  int64_t in_range, count;  // the first element in the range, and the number of elements
  int number;               // the number of their parameters
};
// Divides what this rank owns of a unit into segments. `number` returns a number for a parameter,
// such as the place of its rule in a list; neighbours with equal numbers share a segment.
// Parameters without a number are left out. Padding belongs to the parameter before it.
std::vector<Segment> segments_of(
    const model::ParamUnit& unit,
    const std::function<std::optional<int>(const model::Parameter&)>& number);

class OwnedState {
 public:
  using Has = std::function<bool(const model::ParamSpec&)>;
  // Allocates zeros, fp32 or bf16, for the parameters that `has` accepts and that are not frozen.
  // The parameters must be materialized.
  OwnedState(Stream& stream, model::ParamStore& params, DType dtype, Has has);

  DType dtype() const { return dtype_; }
  bool has(const model::ParamSpec& p) const { return has_(p); }
  // Returns the state of `count` elements of an owned range, from element `in_range` of the range.
  // Throws BugError unless the state has all of them, next to each other.
  Tensor at(const model::ParamUnit& unit, const model::OwnedRange& range, int64_t in_range,
            int64_t count) const;
  // Returns what this rank owns of the unit, laid out as ParamUnit::own_value is. It is 0 where a
  // parameter lacks the state.
  Tensor own(Stream& stream, const model::ParamUnit& unit) const;
  // Sets this rank's part of a parameter's state; values are rounded to nearest if the state is
  // bf16. `read` reads elements of the layout-free tensor.
  void set(model::ParamUploader& uploader, const model::Parameter& p,
           const model::ReadElements& read) const;

 private:
  struct Part {
    Segment segment;
    int64_t first;   // its first element in `tensor`
    int64_t in_own;  // its first element in the layout of ParamUnit::own_value
  };
  struct Unit {
    std::vector<Part> parts;
    Tensor tensor;  // absent if no parameter of the unit has the state
  };
  const Unit& of(const model::ParamUnit& unit) const;

  DType dtype_;
  Has has_;
  std::map<const model::ParamUnit*, Unit> units_;
};

}  // namespace mtrain::optim
