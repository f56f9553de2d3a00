// Decides one overlap feature from what the recipe asks for and what the run makes possible, and
// adds its row to the overlap table.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "plan/overlap.h"
#include "recipe/schema/field.h"

namespace mtrain::plan {

// A reason, mostly a literal. Many are written down for each that is read.
class Reason {
 public:
  Reason(const char* literal = "") : literal_(literal) {}
  Reason(std::string text) : literal_(nullptr), text_(std::move(text)) {}

  std::string str() const { return literal_ ? literal_ : text_; }

 private:
  const char* literal_;
  std::string text_;
};

// Whether a feature can be active. `off` is the kind of obstacle. `why` describes the obstacle, or
// what the feature does if it can be active.
struct Condition {
  OverlapRow::Off off = OverlapRow::Off::no;
  Reason why;
  bool ok() const { return off == OverlapRow::Off::no; }
};

// all() returns a condition that is ok if every need is. The first need that is not ok gives the
// reason.
struct Need {
  bool ok;
  Reason otherwise;
  OverlapRow::Off off = OverlapRow::Off::contradicts;
};
Condition all(std::initializer_list<Need> needs, Reason why = "");

// Decides a feature that may be `auto`. If `auto_on`, `auto` turns it on if it is `possible`.
// Returns whether the feature takes effect.
bool decide(std::vector<OverlapRow>& table, const char* field, const recipe::Auto<bool>& asked,
            const Condition& possible, bool auto_on = true);

// Decides a feature that is off by default.
bool decide(std::vector<OverlapRow>& table, const char* field, bool asked,
            const Condition& possible);

}  // namespace mtrain::plan
