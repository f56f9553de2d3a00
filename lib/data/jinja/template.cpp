#include "data/jinja/template.h"

#include <utility>

#include "base/error.h"
#include "data/jinja/parser.h"
#include "data/jinja/renderer.h"

namespace mtrain::data::jinja {

struct Template::State {
  Parsed parsed;
};

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  try {
    state_ = std::make_unique<const State>(State{parse_template(source)});
  } catch (const SyntaxFault& fault) {
    throw UserError(fmt::format("{}, line {}: {}", name_, fault.line, fault.why));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendered Template::render(const Variables& variables, bool track, const Limits& limits,
                          std::optional<std::tm> now) const {
  Renderer renderer(limits, track, now);
  try {
    return renderer.run(state_->parsed.body, variables);
  } catch (const Fault& fault) {
    throw UserError(fmt::format("{}, line {}: {}", name_, renderer.line(), fault.why));
  }
}

bool Template::has_generation() const { return state_->parsed.generation; }

}  // namespace mtrain::data::jinja
