// Compares templates with Jinja2: test/golden/chat/expected.json, by scripts/check_templates.py.
// Tests the limits of templates, and their errors.
#include <catch2/catch.hpp>
#include <ctime>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/jinja/json_value.h"
#include "data/jinja/template.h"

namespace data_jinja_test {

using namespace mtrain;
using namespace mtrain::data::jinja;
using Catch::Matchers::Contains;

namespace {

const std::string kGolden = std::string(MTRAIN_SOURCE_DIR) + "/test/golden/chat/";

std::tm golden_time() {  // as in the script
  std::tm time{};
  time.tm_year = 125, time.tm_mon = 2, time.tm_mday = 9;
  time.tm_hour = 7, time.tm_min = 5, time.tm_sec = 2;
  time.tm_yday = 67;
  return time;
}

nlohmann::ordered_json read_golden(const std::string& name) {
  return parse_ordered_json(read_file(kGolden + name), name);
}

Variables variables_of(const nlohmann::ordered_json& object) {
  Variables variables;
  for (const auto& [name, value] : object.items())
    variables.emplace_back(name, value_of_json(value));
  return variables;
}

std::string render(const std::string& source, const Variables& variables = {}) {
  return Template(source, "t").render(variables).text;
}

// Returns the error of a template; "no error" without one.
std::string error_of(const std::string& source, const Limits& limits = {}) {
  try {
    Template(source, "t").render({}, true, limits);
  } catch (const UserError& e) {
    return e.message();
  }
  return "no error";
}

}  // namespace

TEST_CASE("templates of fifteen families render as in Jinja2, with the same spans of generation") {
  const auto golden = read_golden("expected.json");
  CHECK(golden["families"].size() == 15);
  for (const auto& family : golden["families"]) {
    const std::string name = family["name"];
    const Template chat(read_file(kGolden + name + ".jinja"), name);
    for (const auto& conversation : family["cases"]) {
      const auto out = chat.render(variables_of(conversation["variables"]), chat.has_generation(),
                                   {}, golden_time());
      CHECK(out.text == conversation["text"].get<std::string>());
      CHECK(nlohmann::ordered_json(out.generated) == conversation["generated"]);
    }
  }
}

TEST_CASE("expressions and statements mean what they mean in Jinja2") {
  const auto golden = read_golden("expected.json");
  const Variables variables = variables_of(read_golden("snippets.json"));
  CHECK(golden["snippets"].size() > 700);
  for (const auto& snippet : golden["snippets"]) {
    const std::string source = snippet["source"];
    INFO(source);
    if (snippet.contains("refused"))
      CHECK_THROWS_AS(Template(source, "t").render(variables, false, {}, golden_time()), UserError);
    else
      CHECK(Template(source, "t").render(variables, false, {}, golden_time()).text ==
            snippet["text"].get<std::string>());
  }
}

TEST_CASE("a template that does not end, or grows without end, is stopped") {
  const Limits small{.steps = 100'000, .text_bytes = 1 << 20, .value_bytes = 1 << 24};
  const std::string forever =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  CHECK_THAT(error_of(forever, small), Contains("does not end"));
  CHECK_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), Contains("calls itself"));
  CHECK_THAT(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
             Contains("calls itself"));
  CHECK_THAT(error_of("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", small),
             Contains("grows without end"));
  CHECK_THAT(
      error_of("{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
               "{% endfor %}"),
      Contains("bytes"));
  CHECK_THAT(
      error_of("{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}"
               "{% endfor %}{{ n.x }}"),
      Contains("a value takes more"));
  CHECK_THAT(error_of("{% set n = namespace(x=1) %}{% for i in range(999) %}{% set n.x = [n.x] %}"
                      "{% endfor %}"),
             Contains("levels"));
  CHECK_THAT(error_of("{% set n = namespace() %}{% set n.x = n %}{{ n }}"), Contains("levels"));
  CHECK_THAT(error_of("{{ 'x' * 99999999999 }}"), Contains("bytes"));
  CHECK_THAT(error_of("{{ [1] * 99999999999 }}"), Contains("bytes"));
  CHECK_THAT(error_of("{{ 'x'.center(99999999999) }}"), Contains("bytes"));
  CHECK_THAT(error_of("{{ '%99999999999d' % 1 }}"), Contains("bytes"));
  CHECK_THAT(error_of("{{ 'x'|indent(99999999999) }}"), Contains("bytes"));
  CHECK_THAT(error_of("{{ range(999999999) }}"), Contains("100000"));
  CHECK_THAT(error_of("{{ ('x' * 9999).replace('x', 'x' * 99999) }}"), Contains("bytes"));
}

TEST_CASE("a template that is nested too deeply is refused") {
  const auto times = [](int n, const std::string& text) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  for (const int n : {1000, 100'000}) {
    CHECK_THAT(error_of("{{ " + times(n, "(") + "1" + times(n, ")") + " }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ " + times(n, "[") + "1" + times(n, "]") + " }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ 1" + times(n, "+1") + " }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ x" + times(n, "|e") + " }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ x" + times(n, ".a") + " }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ " + times(n, "not ") + "1 }}"), Contains("levels"));
    CHECK_THAT(error_of("{{ " + times(n, "-") + "1 }}"), Contains("levels"));
    CHECK_THAT(error_of(times(n, "{% if 1 %}") + times(n, "{% endif %}")), Contains("levels"));
    CHECK_THAT(error_of("{% set " + times(n, "(") + "a" + times(n, ")") + " = 1 %}"),
               Contains("levels"));
  }
  CHECK(render("{% if 0 %}" + times(5000, "{% elif 0 %}") + "{% else %}x{% endif %}") == "x");
}

TEST_CASE("an error names the template, the line and the reason") {
  CHECK(error_of("a\n{{ x.y }}") == "t, line 2: 'x' is undefined");
  CHECK(error_of("a\n\n{% if %}{% endif %}") == "t, line 3: expected an expression, found %}");
  CHECK(error_of("{# c\n #}\n{{ raise_exception('no ' ~ 'system') }}") ==
        "t, line 3: the template says: no system");
  CHECK(error_of("{% for x in\n 5 %}{% endfor %}") ==
        "t, line 1: a value of type int is not iterable");
  CHECK(error_of("{{ [].append(1) }}") ==
        "t, line 1: templates cannot change a list: append() is forbidden");
  CHECK(error_of("\n{% include 'x' %}") == "t, line 2: the block include is not supported");
  CHECK(error_of("{{ 1|urlize }}") == "t, line 1: the filter urlize is not supported");
  CHECK(error_of("{% if x %}\n\n") == "t, line 2: a block that began in line 1 has no endif");
  CHECK(error_of("{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}\n{{ m() }}")
            .starts_with("t, line 1: the block generation is in a macro"));
  CHECK(error_of("\xFF") == "t, line 1: the template is not UTF-8");
}

TEST_CASE("a template may be rendered by several threads at once") {
  const Template chat("{% for i in range(50) %}{{ i ~ x }}{% endfor %}", "t");
  const std::string expected = chat.render({{"x", Value("a")}}).text;
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&] { text = chat.render({{"x", Value("a")}}).text; });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) CHECK(text == expected);
}

}  // namespace data_jinja_test
