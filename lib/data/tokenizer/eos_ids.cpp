#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/json_keys.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

namespace {

nlohmann::json read_object(const std::filesystem::path& path) {
  std::string twice;
  nlohmann::json json;
  try {
    json = parse_unique_keys(read_file(path), twice);
  } catch (const nlohmann::json::exception& e) {
    throw UserError(fmt::format("{} is not valid JSON: {}", path.string(), e.what()));
  }
  if (!json.is_object()) throw UserError(fmt::format("{} is not a JSON object", path.string()));
  if (!twice.empty())
    throw UserError(fmt::format("{}: the key `{}` is given twice", path.string(), twice),
                    "keep one of the two");
  return json;
}

}  // namespace

std::vector<int32_t> read_eos_ids(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto path = folder / name;
    if (!std::filesystem::exists(path)) continue;
    const nlohmann::json json = read_object(path);
    const auto found = json.find("eos_token_id");
    if (found == json.end() || found->is_null()) continue;
    std::vector<int32_t> ids;
    for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
      if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max())
        throw UserError(fmt::format("{}: eos_token_id is {}, expected an id or a list of ids",
                                    path.string(), found->dump()));
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
  if (tokenizer.eod()) return {*tokenizer.eod()};
  return {};
}

}  // namespace mtrain::data
