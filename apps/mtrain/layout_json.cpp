#include "layout_json.h"

#include <string>

#include <nlohmann/json.hpp>

namespace mtrain {

nlohmann::ordered_json layout_json(const predict::RankedLayout& r) {
  nlohmann::ordered_json j;
  j["settings"] = r.change.settings;
  for (const auto& [field, name] : enum_names(plan::LayoutField{})) {
    const std::string value = r.choice.show(field);
    nlohmann::ordered_json& of_field = j["layout"][std::string(name)];
    if (const auto number = nlohmann::ordered_json::parse(value, nullptr, false);
        number.is_number())
      of_field = number;
    else
      of_field = value;
  }
  j["dp"] = r.dp;
  j["step_s"] = r.step_s;
  j["tokens_per_s"] = r.tokens_per_s;
  j["mfu"] = r.mfu;
  j["memory_bytes"] = r.memory;
  return j;
}

}  // namespace mtrain
