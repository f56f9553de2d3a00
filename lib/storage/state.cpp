#include "storage/state.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "storage/file_sums.h"

namespace mtrain::storage {

using nlohmann::json;

const TrainState::Value& TrainState::at(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) throw UserError(fmt::format("{} has no `{}`", origin_, key));
  return it->second;
}

template <class T>
const T& TrainState::get(std::string_view key, const char* kind) const {
  const auto* value = std::get_if<T>(&at(key));
  if (!value) throw UserError(fmt::format("{}: `{}` is not {}", origin_, key, kind));
  return *value;
}

int64_t TrainState::integer(std::string_view key) const { return get<int64_t>(key, "an integer"); }
const std::string& TrainState::text(std::string_view key) const {
  return get<std::string>(key, "a text");
}
void TrainState::save(const std::filesystem::path& path) const {
  json values = json::object();
  for (const auto& [key, value] : values_)
    std::visit([&, &name = key](const auto& v) { values[name] = v; }, value);
  // Bytes of a path that are not UTF-8 must not make a save fail.
  const std::string text = json{{"format", format_}, {"values", values}}.dump(
      2, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
  write_file_atomic(path, text + "\n", Durable::later);
}

TrainState TrainState::load(const std::filesystem::path& path) {
  TrainState state;
  state.origin_ = path.string();
  const auto damaged = [&](const std::string& what) {
    return damaged_file(path, fmt::format("it is not a training state: {}", what));
  };
  const json file = read_json(path, "load another checkpoint");
  if (!file.is_object()) throw damaged("not a JSON object");
  const auto format = file.find("format");
  if (format == file.end() || !format->is_number_integer()) throw damaged("no format number");
  if (*format != kFormat && *format != kFormatOfSamples)
    throw UserError(fmt::format("{} has format {}; this mtrain reads formats {} and {}",
                                state.origin_, format->dump(), kFormat, kFormatOfSamples),
                    "load it with the version of mtrain that wrote it");
  state.format_ = format->get<int>();
  const auto values = file.find("values");
  if (values == file.end() || !values->is_object()) throw damaged("no values");
  for (const auto& [key, value] : values->items()) {
    if (value.is_number_integer() &&
        !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX)))
      state.values_[key] = value.get<int64_t>();
    else if (value.is_string())
      state.values_[key] = value.get<std::string>();
    else
      throw damaged(fmt::format("`{}` is neither an integer nor a text", key));
  }
  return state;
}

}  // namespace mtrain::storage
