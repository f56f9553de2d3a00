// JSON as values of a template.
#pragma once
#include <nlohmann/json.hpp>

#include "data/jinja/value.h"

namespace mtrain::data::jinja {

// Keys keep their order. Throws Fault for an integer that does not fit into 64 bits.
Value value_of_json(const nlohmann::ordered_json& json);

}  // namespace mtrain::data::jinja
