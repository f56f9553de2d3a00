// Tests the messages for typing mistakes in YAML.
#include <cstdlib>
#include <filesystem>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "recipe/load/node.h"
#include "recipe/load/yaml_faults.h"

namespace recipe_typing_test {

using namespace mtrain;
using namespace mtrain::recipe;
using Catch::Matchers::Contains;

namespace {

struct Mistake {
  std::string text, place, reason, hint;
};

void expect_mistakes(const std::vector<Mistake>& mistakes) {
  for (const Mistake& m : mistakes) {
    Diagnostics diagnostics;
    plan::load_recipe_text(interchange::model_source(), m.text, "r.yaml", {}, diagnostics);
    const std::string said = diagnostics.text(Severity::error);
    INFO(m.text << "\n" << said);
    CHECK(said.starts_with("r.yaml:" + m.place + ": error: "));
    CHECK_THAT(said, Contains(m.reason) && Contains("hint: ") && Contains(m.hint));
    CHECK_THAT(said, !Contains("YAML: ") && !Contains("map value") && !Contains("not found"));
  }
}

}  // namespace

TEST_CASE("a quote that is not closed is refused where it opens, even if another one closes it") {
  const std::string gist = "the quote that opens here is not closed";
  expect_mistakes({
      {"dataset:\n  train: \"data/x\n  seq_length: 8\n", "2:10", gist, "write \"data/x\""},
      {"dataset:\n  train: \"data/x\n  seq_length: 8\nmodel: {from: \"x\"}\n", "2:10", gist, ""},
      {"dataset:\n  train: 'data/x # here\n  validation: 'y'\n", "2:10", gist, "write 'data/x'"},
      {"dataset: {train: \"data/x, seq_length: 8}\n", "1:18", gist, "write \"data/x\""},
      {"dataset:\n  train:\n  - \"a\n  - \"b\"\n", "3:5", gist, "write \"a\""},
      {"train: {run_dir: 'x}\n", "1:18", gist, "write 'x'"},
      {"dataset: {train: \"a,\n  validation: \"b\"}\n", "1:18", gist, "write \"a\""},
  });
}

TEST_CASE("text after the last bracket is refused, even if a quote in it has several lines") {
  for (const std::string text : {"- [\"a\n\"]x\n", "- {\"a\n\"}]\n", "a: [\"b\n \"]x\n",
                                 "a: [\"b\n \"]]\n", "a: {'b\n  '}: c\n", "- ['a\n']\"b\n\"\n"}) {
    INFO(text);
    CHECK(find_yaml_faults(text, true).likely);
    Diagnostics diagnostics;
    plan::load_recipe_text(interchange::model_source(), text, "r.yaml", {}, diagnostics);
    CHECK(diagnostics.has_errors());
  }
}

TEST_CASE("a colon without a space after it is named in its own line") {
  const std::string gist = "a space is missing after the colon";
  expect_mistakes({
      {"model:\n  num_layers:8\n  hidden_size: 256\n", "2:3", gist, "write num_layers: 8"},
      {"model:\n  num_layers: 8\n  hidden_size:256\n", "3:3", gist, "write hidden_size: 256"},
      {"model:\n  num_layers:8\n", "2:3", gist, "write num_layers: 8"},
      {"model: {num_layers:8, hidden_size: 256}\n", "1:9", gist, "write num_layers: 8"},
      {"model: {hidden_size: 256, num_layers:8}\n", "1:27", gist, "write num_layers: 8"},
      {"dataset:\n  train:\n  - a\nmodel:\n  num_layers:8\n", "5:3", gist, "write num_layers: 8"},
  });
}

TEST_CASE("signs of other languages are named with those of YAML") {
  expect_mistakes({
      {"model:\n  num_layers = 8\n  hidden_size = 256\n", "2:3", "not `=`", "write num_layers: 8"},
      {"model: {num_layers=8}\n", "1:9", "not `=`", "write num_layers: 8"},
      {"dataset:\n  train: \u201cdata/x\u201d\n", "2:10", "a typographic quote", "straight quotes"},
      {"dataset: {train: \u2018data/x\u2019}\n", "1:18", "a typographic quote", "straight quotes"},
      {"model:\n \u00a0num_layers: 8\n", "2:2", "a non-breaking space", "with a space"},
      {"dataset: {train: x}\nmodel:\n  num_layers: 8,\n", "3:3", "`8,`", "write 8: numbers"},
  });
}

TEST_CASE("commas and brackets that are missing are named where they belong") {
  expect_mistakes({
      {"model: {num_layers: 8 hidden_size: 256}\n", "1:23", "a comma is missing before hidden_size",
       "write a comma before hidden_size"},
      {"model: {num_layers: 8,\n  hidden_size: 256\n  vocab_size: 512}\n", "3:3",
       "a comma is missing before vocab_size", ""},
      {"optimizer: {betas: [\"0.9\" \"0.95\"]}\n", "1:27", "a comma is missing", ""},
      {"model: {num_layers: 8\ndataset: {train: x}\n", "1:8", "`{` that opens here is not closed",
       "write `}`"},
      {"model: {num_layers: 8,\ndataset: {train: x}\n", "1:8", "`{` that opens here is not closed",
       "write `}`"},
      {"optimizer: {betas: [0.9, 0.95}\n", "1:20", "`[` that opens here is not closed",
       "write `]`"},
      {"dataset: {seq_length: 2,048, train: x}\n", "1:23", "a comma ends a value", "write 2048"},
      {"dataset: {train: x, seq_length: 1,000,000}\n", "1:33", "a comma ends a value",
       "write 1000000"},
      {"dataset: {train: x}\nmodel:\n  vocab_size: 50,304\n", "3:3", "50,304", "write 50304"},
      {"dataset: {train: x}\noptimizer: {lr: 0,001}\n", "2:17", "a comma ends a value",
       "write 0.001"},
      {"optimizer: {lr: 0,1, betas: [0.9, 0.95]}\n", "1:17", "a comma ends a value", "write 0.1"},
      {"dataset: {train: x}\noptimizer:\n  lr: 0,001\n", "3:3", "0,001", "write 0.001"},
      {"dataset: {train: x}\noptimizer:\n  lr: 0,02\n", "3:3", "0,02", "write 0.02"},
      {"optimizer: {lr: 2e-3,, }\n", "1:22", "an empty entry between two commas", "remove"},
      {"optimizer: {betas: [0.9,\n  , 0.95]}\n", "2:3", "an empty entry between two commas",
       "remove"},
      {"optimizer: {, lr: 1}\n", "1:13", "an empty entry after `{`", "remove the comma"},
  });
}

TEST_CASE("a line with the wrong indentation is compared with the key before it") {
  expect_mistakes({
      {"model:\n  num_layers: 8\n hidden_size: 256\n", "3:2",
       "hidden_size has 1 space before it, and num_layers (line 2) has 2",
       "indent hidden_size by 2 spaces"},
      {"model:\n  num_layers: 8\n    hidden_size: 256\n", "3:5",
       "hidden_size has 4 spaces before it, and num_layers (line 2) has 2",
       "indent hidden_size by 2 spaces"},
      {"model:\n    num_layers: 8\n  hidden_size: 256\n", "3:3", "(line 2) has 4",
       "indent hidden_size by 4 spaces"},
      {"optimizer:\n  betas: [0.9, 0.95]\n   lr: 1\n", "3:4", "betas (line 2) has 2",
       "indent lr by 2 spaces"},
      {"model:\n\tnum_layers: 8\n", "2:1", "a tab indents this line; YAML allows only spaces",
       "replace the tab with spaces"},
      {"model: num_layers: 8\n", "1:18", "a second `: `", "model: {num_layers: 8}"},
  });
}

TEST_CASE("files of other languages are named") {
  expect_mistakes({
      {"# a job\n[model]\nname = \"llama3\"\n", "2:1", "this looks like TOML", "num_layers: 8"},
      {"seq_len = 8\n", "1:1", "this looks like TOML", ""},
      {"from torch import nn\n\nclass A(nn.Module):\n  pass\n", "1:1", "this looks like Python",
       "--print-recipe"},
      {"#!/usr/bin/env python3\nx = 1\n", "1:1", "this looks like a script", ""},
      {std::string("PAR1\x15\x04\0", 7), "1:5", "this is not a text", "plain text"},
  });
}

TEST_CASE("correct YAML of every form has no fault") {
  for (const std::string text : {
           "a: it's\nb: 'it''s'\nc: \"\\\"\"\nd: x # it's\n",
           "a: |\n  b:c \"\n    d: 'x\n  e:\n   f:8\n",
           "a: |\n  b:c \"\n    d: 'x\ne: 8\n",
           "a:\n- b: 1\n  c: 2\n- d\nf: 1\n",
           "a:\n  - - b: 1\n      c: 2\n  -\n    d: 1\n",
           "{\n\"a\": [1,\n2], \"b\": {\"c\":3}\n}\n",
           "a: {b: 1, # c\n    d: [e, f], }\n",
           "a: plain\n  text:of two lines\nb: http://x:8\n",
           "a: \"of two\n  lines\"\nb: &x !!str 8\nc: *x\n",
           "a: \"text \\\n  b: c\\\n  \\ d\"\n",
           "base:\n  http://host/x\nd: ${oc.env:HOME}/x\n",
           "---\na: 1\n...\n",
           "? a\n: b\n",
           "\"a\": 1\n\"b\":\n  c: 1\n",
           "a:\t1e-3\nb: {c:\t1,\t# d\n   e:\t2\t}\t# f\ng:\t'h'\t# i: \"\n",
           "{\n\"a\": 1,\t# note: {\n\"b\": [2,\t# note\n3]\n}\n",
           "a:\tb\t# c: d\ne:\t\n- \tf\n-\tg\n",
           "a: 'first: part\n  second: part'\nb: \"x\n  - y\n  # z\n\n  c: d\"\n",
           "a:\n  'first: part\n  second: part'\nb:\n- 'x\n  y: z'\n- {c: 'd\n    e: f'}\n",
           "a:\n- |\n  foo:bar\n  x = y\n- >-\n  \"b\n- c\n",
           "a:\n  - plain\n    b:c\n    x = y\n  - &d !!str e\n  - # h: 'i\n    j: 1\nk: "
           "2\n",
           "a:\n  |\n  b:c \"\nd: [e, {f: , g}, ]\n",
       }) {
    INFO(text);
    const YamlFaults faults = find_yaml_faults(text, true);
    CHECK_FALSE(faults.certain);
    CHECK_FALSE(faults.likely);
    CHECK_FALSE(find_other_language(text));
    Diagnostics diagnostics;
    Node root;
    const bool parsed = parse_yaml(text, "r.yaml", diagnostics, root);
    INFO(diagnostics.text(Severity::error));
    CHECK(parsed);
    CHECK_FALSE(diagnostics.has_errors());
  }
  CHECK_FALSE(find_yaml_faults("hf:model", false).certain);
  CHECK(find_yaml_faults("{num_layers:8}", false).certain);
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MTRAIN_SOURCE_DIR) + "/recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    INFO(entry.path());
    const YamlFaults faults = find_yaml_faults(read_file(entry.path().string()), true);
    CHECK_FALSE(faults.certain);
    CHECK_FALSE(faults.likely);
  }
}

TEST_CASE("a text instead of a section gets the completed setting as a hint") {
  const std::string gist = "is a section of several keys";
  expect_mistakes({
      {"dataset: data/corpus\n", "1:1", gist, "write dataset: {train: data/corpus}"},
      {"dataset: {train: x}\nmodel: meta-llama/Llama-3.2-1B\n", "2:1", gist,
       "write model: {from: meta-llama/Llama-3.2-1B}"},
      {"dataset: {train: x}\nmodel: llama3_8b\n", "2:1", gist, "mtrain llama3_8b"},
      {"dataset: {train: x}\nfp8: hybrid\n", "2:1", gist, "write mixed_precision: {fp8: hybrid}"},
  });
}

TEST_CASE("a path that begins with ~ is in the home folder") {
  const char* old = std::getenv("HOME");
  const std::string home = old ? old : "";
  ::setenv("HOME", "/me", 1);
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(),
                                          "dataset: {train: [~/a, b~/c], validation: ~/d}\n",
                                          "r.yaml", {"train.run_dir=~/runs/x"}, diagnostics);
  ::setenv("HOME", home.c_str(), 1);
  CHECK(r.dataset.train == std::vector<std::string>{"/me/a", "b~/c"});
  CHECK(r.train.run_dir == "/me/runs/x");
}

}  // namespace recipe_typing_test
