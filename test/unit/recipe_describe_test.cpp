// Tests that the documents made from the schema agree with the loader.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "recipe/print/explain.h"
#include "recipe/print/schema_export.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace recipe_describe_test {

using namespace mtrain;
using namespace mtrain::recipe;
using Catch::Matchers::Contains;

TEST_CASE("every default is accepted as a value and lies in its range") {
  for (const auto& row : schema_rows()) {
    INFO(row.path << " = " << row.show_default());
    Diagnostics diagnostics;
    Node node;
    REQUIRE(parse_yaml(row.show_default(), "default", diagnostics, node));
    Recipe recipe;
    ValueError c;
    const bool unset = row.show_default() == "none" || row.show_default() == "''";
    if (unset) continue;
    const bool read = row.ops->read(node, row.options, row.at(recipe), c);
    INFO(c.reason);
    REQUIRE(read);
    REQUIRE(row.show(recipe) == row.show_default());
    REQUIRE(row.help.size() > 5);
  }
}

TEST_CASE("a value with control characters is shown escaped, and read back unchanged") {
  struct Row {
    std::string value, shown;
  };
  for (const auto& [value, shown] :
       std::vector<Row>{{"\x1b[2Jx", R"("\x1b[2Jx")"},
                        {"\xc2\x9b"
                         "2J\x7f",
                         R"("\x9b2J\x7f")"},
                        {"a\tb\nc", R"("a\tb\nc")"},
                        {"\xc3\xa9t\xc3\xa9", "'\xc3\xa9t\xc3\xa9'"}}) {
    CHECK(show_value(value) == shown);
    Diagnostics diagnostics;
    Node node;
    REQUIRE(parse_yaml(shown, "value", diagnostics, node));
    CHECK(node.text == value);
  }
}

TEST_CASE("the JSON Schema is well formed and knows every spelling") {
  const std::string json = schema_json();
  // JSON is YAML, so our own parser can compare it with the schema.
  Diagnostics diagnostics;
  Node root;
  REQUIRE(parse_yaml(json, "schema", diagnostics, root));
  REQUIRE_FALSE(diagnostics.has_errors());
  const auto child = [](const Node& node, const std::string& key) -> const Node* {
    for (size_t i = 0; i < node.keys.size(); ++i)
      if (node.keys[i].name == key) return &node.items[i];
    return nullptr;
  };
  const auto find = [&](std::string path) {
    const Node* node = &root;
    for (size_t dot = 0; node && dot != std::string::npos; path = path.substr(dot + 1)) {
      dot = path.find('.');
      node = child(*node, "properties");
      if (node) node = child(*node, path.substr(0, dot));
      if (dot == std::string::npos) break;
    }
    return node;
  };
  for (const auto& row : schema_rows()) {
    INFO(row.path);
    REQUIRE(find(row.path));
    REQUIRE(child(*find(row.path), "anyOf"));
    for (const auto& alias : row.aliases()) REQUIRE(find(alias));
  }
  REQUIRE(find("dist.use_megatron_fsdp"));
  // A field that is also a mapping.
  REQUIRE(find("checkpoint.load.path"));
  REQUIRE(child(child(*find("checkpoint.load"), "anyOf")->items.at(0), "type")->text == "object");
  REQUIRE_FALSE(find("model.hiden_size"));
}

TEST_CASE("explain answers for fields, spellings and sections") {
  REQUIRE_THAT(explain("distributed.pipeline.pp_schedule"),
               Contains("default   1f1b") && Contains("zero_bubble"));
  REQUIRE_THAT(explain("cfg.model.rope-theta"), Contains("model.rotary_base"));
  REQUIRE_THAT(explain("optimizer"), Contains("weight_decay"));
  REQUIRE_THAT(explain("dist.use_megatron_fsdp"), Contains("sets distributed.strategy"));
  REQUIRE_THAT(explain("ddp.bucket_size"), Contains("parameters") && Contains("megatron_ddp"));
  REQUIRE_THROWS_WITH(explain("optimizer.lrr"), Contains("`optimizer.lr`?"));
  const std::string markdown = schema_markdown();
  for (const auto& row : schema_rows())
    REQUIRE_THAT(markdown, Contains("| " + row.path.substr(row.path.rfind('.') + 1) + " |"));
}

}  // namespace recipe_describe_test
