// A chat template of any text is rendered or refused, within its limits.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/jinja/template.h"

namespace {

using namespace mtrain;
using data::jinja::Value;

Value message(const char* role, const char* content) {
  return data::jinja::make_dict({{"role", role}, {"content", content}});
}

void attempt(std::string_view source) {
  const data::jinja::Limits limits{
      .steps = 20'000, .text_bytes = 1 << 18, .value_bytes = 1 << 22, .depth = 150};
  const data::jinja::Variables variables{
      {"messages", Value::list({message("system", "s"), message("user", "é\n x"),
                                message("assistant", "<b>")})},
      {"tools", Value::list({data::jinja::make_dict({{"name", "f"}, {"n", 3}, {"x", 1.5}})})},
      {"bos_token", "<s>"},
      {"add_generation_prompt", true}};
  try {
    const data::jinja::Template chat(source, "t");
    const auto out = chat.render(variables, chat.has_generation(), limits);
    size_t before = 0;
    for (const auto& [begin, end] : out.generated) {
      MT_CHECK(before <= begin && begin <= end && end <= out.text.size(), "{} {}", begin, end);
      before = end;
    }
    MT_CHECK(chat.render(variables, false, limits).text == out.text, "the text differs");
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt(text);
  attempt("{{ " + std::string(text) + " }}");
  attempt("{% for m in messages %}{{ m." + std::string(text) + " }}{% endfor %}");
  return 0;
}
