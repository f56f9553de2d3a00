// Jinja's filters that make numbers.
#pragma once
#include "data/jinja/function.h"

namespace mtrain::data::jinja {

Value filter_int(Machine& machine, const Value& self, Arguments& args);
Value filter_float(Machine& machine, const Value& self, Arguments& args);
Value filter_round(Machine& machine, const Value& self, Arguments& args);
Value filter_abs(Machine& machine, const Value& self, Arguments& args);

}  // namespace mtrain::data::jinja
