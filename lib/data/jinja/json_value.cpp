#include "data/jinja/json_value.h"

#include <limits>

namespace mtrain::data::jinja {

Value value_of_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return json.get<bool>();
    case nlohmann::json::value_t::number_integer: return json.get<int64_t>();
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
        fail("the number {} does not fit into 64 bits", json.dump());
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float: return json.get<double>();
    case nlohmann::json::value_t::string: return Value(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> values;
      for (const auto& element : json) values.push_back(value_of_json(element));
      return Value::list(std::move(values));
    }
    case nlohmann::json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items()) entries.emplace_back(key, value_of_json(value));
      return make_dict(std::move(entries));
    }
    default: return Value();
  }
}

}  // namespace mtrain::data::jinja
