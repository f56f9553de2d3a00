#include "base/json.h"

#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/regular_file.h"
#include "base/terminal.h"

namespace mtrain {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Returns the position, counted from 1, of the first bracket that is nested too deeply; or 0. All
// brackets outside of strings count: the limit therefore also holds for invalid texts.
size_t first_too_deep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepestJson) return i + 1;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return 0;
}

// Returns the reason in nlohmann's message, without the position and without the unread text: this
// may have any size, and may not be UTF-8.
std::string reason_of(std::string_view what) {
  if (const size_t end = what.find("; last read: "); end != std::string_view::npos)
    what = what.substr(0, end);
  for (const std::string_view begin : {"] ", " - "})
    if (const size_t at = what.find(begin); at != std::string_view::npos)
      what.remove_prefix(at + begin.size());
  if (what.starts_with("number overflow")) what = "a number is too large";
  return std::string(what.substr(0, 200));
}

// Adds a null of this name to an object. Returns its place, or null if the object has the name.
// `names` holds the names of an object whose keys keep their order.
json* add_name(json& object, const std::string& name, std::set<std::string>&) {
  const auto [at, first] = object.get_ref<json::object_t&>().emplace(name, nullptr);
  return first ? &at->second : nullptr;
}
ordered_json* add_name(ordered_json& object, const std::string& name,
                       std::set<std::string>& names) {
  if (!names.insert(name).second) return nullptr;
  auto& entries = object.get_ref<ordered_json::object_t&>();
  // Its own emplace() compares all keys.
  using Entries = std::vector<ordered_json::object_t::value_type>;
  return &static_cast<Entries&>(entries).emplace_back(name, nullptr).second;
}

// Builds the tree of a text. It costs n log n for an object of n values. nlohmann's own builder, if
// it has a callback, goes through the enclosing object again after each object in it.
template <class Json>
class Builder : public nlohmann::json_sax<Json> {
  using Sax = nlohmann::json_sax<Json>;

 public:
  using Take = std::function<bool(size_t depth, Json& object)>;
  explicit Builder(const Take& take) : take_(take) {}

  Json root;
  std::string twice;      // the path of a duplicate key
  size_t error_at = 0;    // the position of a syntax error
  std::string error;      // and its description
  bool too_many = false;  // values

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return put(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return put(value); }
  bool number_float(typename Sax::number_float_t value, const typename Sax::string_t&) override {
    return put(value);
  }
  bool string(typename Sax::string_t& value) override { return put(std::move(value)); }
  bool binary(typename Sax::binary_t&) override { return false; }  // JSON has no binary values
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(typename Sax::string_t& name) override {
    Level& level = levels_.back();
    level.slot = add_name(*level.value, name, level.names);
    if (!level.slot) {
      for (const Level& outer : levels_)
        if (&outer != &level && !outer.key.empty()) twice += outer.key + ".";
      twice += name;
      return false;
    }
    level.key = std::move(name);
    return true;
  }

  bool end_object() override {
    const size_t depth = levels_.size() - 1;
    const bool taken = take_ && take_(depth, *levels_.back().value);
    if (taken) count_ = levels_.back().count_before;
    close();
    if (!taken) return true;
    if (levels_.empty())
      root = nullptr;
    else if (levels_.back().value->is_array())
      levels_.back().value->template get_ref<typename Json::array_t&>().pop_back();
    else
      levels_.back().value->template get_ref<typename Json::object_t&>().erase(levels_.back().key);
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
    error_at = at;
    error = reason_of(e.what());
    return false;
  }

 private:
  struct Level {
    Json* value;           // the open object or list
    size_t count_before;   // values before it
    Json* slot = nullptr;  // in an object: the destination of the next value, and its key
    std::string key = {};
    std::set<std::string> names = {};
  };

  Json* add(Json&& value) {
    too_many = too_many || ++count_ > kMaxJsonValues;
    if (levels_.empty()) return &(root = std::move(value));
    Level& level = levels_.back();
    if (level.value->is_object()) return &(*level.slot = std::move(value));
    auto& list = level.value->template get_ref<typename Json::array_t&>();
    return &list.emplace_back(std::move(value));
  }
  bool put(Json&& value) {
    add(std::move(value));
    return !too_many;
  }
  bool open(Json&& value) {
    const size_t before = count_;
    levels_.push_back({add(std::move(value)), before});
    return !too_many;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const Take& take_;
  std::vector<Level> levels_;
  size_t count_ = 0;
};

template <class Json>
Json parse(std::string_view text, const std::string& name, const std::string& hint,
           const typename Builder<Json>::Take& take) {
  const auto not_json = [&](size_t at, const std::string& why) {
    return UserError(fmt::format("{}: not JSON at byte {}: {}", name, at, why), hint);
  };
  if (const size_t at = first_too_deep(text))
    throw not_json(at, fmt::format("nested more than {} deep", kDeepestJson));
  Builder<Json> builder(take);
  if (Json::sax_parse(text, &builder)) return std::move(builder.root);
  if (!builder.twice.empty())
    throw UserError(fmt::format("{}: the key `{}` is given twice", name, printable(builder.twice)),
                    hint.empty() ? "keep one of the two" : hint);
  if (builder.too_many)
    throw UserError(fmt::format("{}: it has more than {} values", name, kMaxJsonValues), hint);
  throw not_json(builder.error_at, builder.error);
}

}  // namespace

json parse_json(std::string_view text, const std::string& name, const std::string& hint) {
  return parse<json>(text, name, hint, {});
}

ordered_json parse_ordered_json(std::string_view text, const std::string& name,
                                const std::string& hint) {
  return parse<ordered_json>(text, name, hint, {});
}

void parse_json_objects(std::string_view text, const std::string& name,
                        const TakeJsonObject& take) {
  parse<json>(text, name, "", take);
}

json read_json(const std::filesystem::path& path, const std::string& hint) {
  return parse_json(read_regular_file(path, kLargestJson), path.string(), hint);
}

}  // namespace mtrain
