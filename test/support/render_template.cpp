// Renders templates for scripts/check_templates.py: each line of stdin is a JSON object with the
// variables of the template, and each line of stdout has the text and the bytes that blocks
// `generation` made, or the error.
//   render_template TEMPLATE [--track] < variables.jsonl
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/jinja/json_value.h"
#include "data/jinja/template.h"

namespace {

using namespace mtrain;

nlohmann::json render(const data::jinja::Template& chat, const std::string& line, bool track) {
  try {
    data::jinja::Variables variables;
    const nlohmann::ordered_json object = parse_ordered_json(line, "the line");
    for (const auto& [name, value] : object.items())
      variables.emplace_back(name, data::jinja::value_of_json(value));
    const data::jinja::Rendered out = chat.render(variables, track);
    return {{"text", out.text}, {"generated", out.generated}};
  } catch (const UserError& e) {
    return {{"error", e.message()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw UserError("no template is given");
    std::ifstream file(argv[1], std::ios::binary);
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    const data::jinja::Template chat(source, argv[1]);
    const bool track = argc > 2 && std::string(argv[2]) == "--track";
    for (std::string line; std::getline(std::cin, line);)
      std::cout << render(chat, line, track).dump() << "\n";
  } catch (const Error& e) {
    std::cout << nlohmann::json{{"error", e.message()}}.dump() << "\n";
    return 2;
  }
  return 0;
}
