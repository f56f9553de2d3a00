#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

std::vector<int32_t> read_eos_ids(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto path = folder / name;
    if (!std::filesystem::exists(path)) continue;
    const auto json = nlohmann::json::parse(read_file(path), nullptr, false);
    if (!json.is_object()) throw UserError(fmt::format("{} is not a JSON object", path.string()));
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
