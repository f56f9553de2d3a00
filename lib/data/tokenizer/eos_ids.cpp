#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

std::optional<std::vector<int32_t>> parse_eos_ids(std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name);
  if (!json.is_object()) throw UserError(fmt::format("{} is not a JSON object", name));
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return std::nullopt;
  std::vector<int32_t> ids;
  for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max())
      throw UserError(fmt::format("{}: eos_token_id holds {}, expected an id or a list of ids",
                                  name, id.dump()));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<int32_t> read_eos_ids(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto path = folder / name;
    if (!std::filesystem::exists(path)) continue;
    if (auto ids = parse_eos_ids(read_regular_file(path, kLargestJson), path.string())) return *ids;
  }
  if (tokenizer.eod()) return {*tokenizer.eod()};
  return {};
}

}  // namespace mtrain::data
