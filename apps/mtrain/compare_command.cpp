// Compares two runs: their curves, recipes and speed.
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "interchange/model_source.h"
#include "observe/compare_runs.h"
#include "observe/metrics_reader.h"
#include "plan/saved_recipe.h"

namespace mtrain {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// How closely runs of different layouts agree (docs/numerics.md).
constexpr double kTolerance32 = 1e-5, kTolerance16 = 2e-2;
constexpr auto kTexts = TableColumn::Align::left;

struct CompareOptions {
  std::string a, b;
  std::string keys;  // empty: losses
  std::optional<double> tolerance;
  bool json = false;
};

struct Recipes {
  std::vector<plan::SettingDifference> differences;
  std::optional<bool> fp32;  // both compute in fp32; absent if the recipes are unknown
  std::string error;         // why the recipes cannot be compared; empty if they were
};

Recipes compare_recipes(const fs::path& a, const fs::path& b) {
  const auto of = [](const fs::path& metrics) {
    return plan::SavedRecipe{.file = metrics.parent_path() / "recipe.yaml"};
  };
  Recipes recipes;
  try {
    auto compared = plan::compare_saved(interchange::model_source(), of(a), of(b));
    recipes.differences = std::move(compared.differences);
    recipes.fp32 = compared.fp32;
  } catch (const Error& e) {
    recipes.error = e.message();
  }
  return recipes;
}

std::string value_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : "NaN";
}

std::string key_text(const observe::KeyComparison& key, double tolerance) {
  if (key.compared == 0)
    return key.in_a > 0 && key.in_b > 0 ? "not measured at the same steps"
                                        : fmt::format("only in {}", key.in_a > 0 ? "A" : "B");
  std::string out;
  if (key.first)
    out = fmt::format("differs first at step {}: {} and {}", key.first->step,
                      value_text(key.first->a), value_text(key.first->b));
  else if (key.largest->difference == 0)
    return fmt::format("equal in all {} records", key.compared);
  else
    out = fmt::format("agrees to {:g} in all {} records", tolerance, key.compared);
  if (key.largest)
    out += fmt::format("; largest difference {:.2g} at step {}", key.largest->difference,
                       key.largest->step);
  return out;
}

void print_text(const CompareOptions& o, const observe::RunComparison& runs,
                const Recipes& recipes) {
  std::string out = fmt::format("A {}\nB {}\nsteps {} to {}, tolerance {:g}{}\n\n", o.a, o.b,
                                runs.first_step, runs.last_step, runs.tolerance,
                                o.tolerance     ? ""
                                : !recipes.fp32 ? " (of fp32; the recipes are unknown)"
                                : *recipes.fp32 ? " (of fp32)"
                                                : " (of 16 bits)");
  for (const observe::KeyComparison& key : runs.keys)
    out += fmt::format("{}: {}\n", key.key, key_text(key, runs.tolerance));
  print_lines(out);
  const int width = line_width(STDOUT_FILENO);
  std::vector<std::vector<std::string>> rows;
  for (const observe::FigureComparison& f : runs.figures)
    rows.push_back({f.unit.empty() ? f.name : f.name + ", " + f.unit, fmt::format("{:.4g}", f.a),
                    fmt::format("{:.4g}", f.b), fmt::format("{:.3f}", f.ratio())});
  std::fputs(
      ("\n" + text_table({{"median", 0, kTexts}, {"A", 10}, {"B", 10}, {"B / A", 10}}, rows, width))
          .c_str(),
      stdout);
  rows.clear();
  for (const plan::SettingDifference& d : recipes.differences) rows.push_back({d.path, d.a, d.b});
  if (!recipes.error.empty())
    print_lines(fmt::format("\nthe recipes cannot be compared: {}\n", recipes.error));
  else if (rows.empty())
    print_lines("\nthe recipes have the same settings\n");
  else
    std::fputs(
        ("\n" + text_table({{"setting", 0, kTexts}, {"A", 12}, {"B", 12}}, rows, width)).c_str(),
        stdout);
}

// A number that is not finite is null, as in metrics.jsonl.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json at_json(const std::optional<observe::KeyComparison::At>& at) {
  if (!at) return nullptr;
  return {{"step", at->step},
          {"a", number(at->a)},
          {"b", number(at->b)},
          {"difference", number(at->difference)}};
}

void print_json(const CompareOptions& o, const observe::RunComparison& runs,
                const Recipes& recipes) {
  ordered_json out{{"a", o.a},
                   {"b", o.b},
                   {"first_step", runs.first_step},
                   {"last_step", runs.last_step},
                   {"tolerance", runs.tolerance},
                   {"within_tolerance", runs.within()},
                   {"keys", ordered_json::array()},
                   {"figures", ordered_json::array()},
                   {"settings", ordered_json::array()}};
  for (const observe::KeyComparison& key : runs.keys)
    out["keys"].push_back({{"key", key.key},
                           {"compared", key.compared},
                           {"first_difference", at_json(key.first)},
                           {"largest_difference", at_json(key.largest)}});
  for (const observe::FigureComparison& f : runs.figures)
    out["figures"].push_back({{"key", f.key},
                              {"name", f.name},
                              {"unit", f.unit},
                              {"a", number(f.a)},
                              {"b", number(f.b)},
                              {"ratio", number(f.ratio())}});
  for (const plan::SettingDifference& d : recipes.differences)
    out["settings"].push_back({{"setting", d.path}, {"a", d.a}, {"b", d.b}});
  if (!recipes.error.empty()) out["settings_error"] = recipes.error;
  std::fputs((out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n").c_str(),
             stdout);
}

void compare(const CompareOptions& o) {
  const fs::path a = observe::locate_metrics(o.a), b = observe::locate_metrics(o.b);
  const Recipes recipes = compare_recipes(a, b);
  const double tolerance =
      o.tolerance.value_or(recipes.fp32.value_or(true) ? kTolerance32 : kTolerance16);
  const char* hint = o.tolerance || recipes.fp32
                         ? ""
                         : "the recipes are unknown: for runs in 16 bits give --tolerance 2e-2";
  const observe::RunComparison runs = observe::compare_runs(
      a, b, o.keys.empty() ? std::vector<std::string>() : split(o.keys, ','), tolerance);
  o.json ? print_json(o, runs, recipes) : print_text(o, runs, recipes);
  std::fflush(stdout);
  for (const observe::KeyComparison& key : runs.keys)
    if (key.first)
      throw RunError(fmt::format("{} differs from step {} on by more than {:g}", key.key,
                                 key.first->step, tolerance),
                     hint);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto o = std::make_shared<CompareOptions>();
  auto* command = app.add_subcommand(
      "compare", "compare two runs: curves, recipes and speed; exit code 1 if the curves differ");
  set_examples(*command, {"mtrain compare runs/first runs/second",
                          "mtrain compare runs/first runs/second --key loss,grad_norm --tolerance "
                          "1e-3",
                          "mtrain compare runs/first runs/second --json"});
  command->add_option("A", o->a, "run folder, a checkpoint in it, or metrics.jsonl")->required();
  command->add_option("B", o->b, "the same of the other run")->required();
  command->add_option("--key", o->keys,
                      "keys to compare, such as loss,grad_norm; default: loss,validation_loss");
  command
      ->add_option("--tolerance", o->tolerance,
                   "largest difference that is accepted, relative to the larger value; default: "
                   "1e-5 if both runs compute in fp32, else 2e-2")
      ->check(number_from(0, 1e9).description(""));
  command->add_flag("--json", o->json, "print JSON");
  command->callback([o] { compare(*o); });
}

}  // namespace mtrain
