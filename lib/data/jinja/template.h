// A template in Jinja's language, as the tokenizers of chat models have it. Rendering follows
// Jinja2 as transformers configures it: the immutable sandbox, trimmed blocks, the blocks
// `generation`, `break` and `continue`. What is not supported is an error that names it.
#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jinja/value.h"

namespace mtrain::data::jinja {

// Ends templates that loop for ever or grow without end.
struct Limits {
  int64_t steps = 20'000'000;              // statements and operations
  int64_t text_bytes = int64_t{1} << 26;   // of the rendered text
  int64_t value_bytes = int64_t{1} << 30;  // of all values that it makes
  int depth = 400;                         // of calls, blocks and operations in each other
};

struct Rendered {
  std::string text;
  // The bytes of `text` that blocks `generation` made, as pairs of begin and end, in order.
  std::vector<std::pair<size_t, size_t>> generated;
};

using Variables = std::vector<std::pair<std::string, Value>>;

class Template {
 public:
  // `name` appears in errors. Throws UserError for a mistake in the syntax.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  // Throws UserError if the template cannot be rendered with these variables, or exceeds a limit.
  // `track`: returns the spans of blocks `generation`, which then must stand in the text itself,
  // not in a macro or an assignment. `now`: the time for strftime_now; by default the clock's.
  // Several threads may call it at the same time.
  Rendered render(const Variables& variables, bool track = false, const Limits& limits = {},
                  std::optional<std::tm> now = {}) const;

  bool has_generation() const;
  const std::string& name() const { return name_; }

 private:
  struct State;
  std::string name_;
  std::unique_ptr<const State> state_;
};

}  // namespace mtrain::data::jinja
