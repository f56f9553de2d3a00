// Layouts of `mtrain plan` as JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "predict/layout_search.h"

namespace mtrain {

// Returns the fields of the layout, the settings that make it, and its figures in seconds and
// bytes.
nlohmann::ordered_json layout_json(const predict::RankedLayout& layout);

}  // namespace mtrain
