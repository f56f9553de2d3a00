#include "calibrate_rows.h"

#include <cstdio>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/model_source.h"
#include "predict/row_calibration.h"
#include "predict/row_ranking.h"

namespace mtrain {

std::shared_ptr<RowOptions> add_row_options(CLI::App& command) {
  auto o = std::make_shared<RowOptions>();
  auto* rows = command.add_option("--from-rows", o->rows,
                                  "instead of measuring, fit a program's constants to these "
                                  "published speeds, a JSON file");
  command.add_option("--models", o->models, "--from-rows: JSON file with the models' shapes")
      ->needs(rows);
  command.add_option("--gpu", o->gpu, "--from-rows: kind of GPU, such as h100")->needs(rows);
  command
      .add_option("--stack", o->stack,
                  "--from-rows: name of the program: megatron_bridge, llmq, llm_foundry, ...")
      ->needs(rows);
  command.add_option("--rows-of", o->kind, "--from-rows: models to fit to: all, dense or experts")
      ->needs(rows);
  command
      .add_flag("--judge-layouts", o->judge,
                "--from-rows: search layouts for each dense row of 16 GPUs or more, and compare "
                "the published one")
      ->needs(rows);
  return o;
}

void calibrate_from_rows(const RowOptions& o, const std::string& output) {
  using predict::RowChoice;
  Diagnostics diagnostics;
  const auto wrong = [&](const char* option, const std::string& reason, const char* hint) {
    diagnostics.add_at(recipe::Severity::error, {option, 0, 0}, "", reason, hint);
  };
  RowChoice choice{.stack = o.stack};
  bool known = false;
  for (const auto& gpu : enum_names(Gpu{}))
    if (gpu.name == o.gpu) {
      choice.gpu = gpu.value;
      known = true;
    }
  if (!known) wrong("--gpu", fmt::format("`{}` is not a known GPU", o.gpu), "write --gpu h100");
  if (o.kind == "dense")
    choice.models = RowChoice::Models::dense;
  else if (o.kind == "experts")
    choice.models = RowChoice::Models::experts;
  else if (o.kind != "all")
    wrong("--rows-of", fmt::format("`{}` is not all, dense or experts", o.kind), "");
  if (o.models.empty()) wrong("--models", "is missing", "name the file with the models' shapes");
  if (o.stack.empty()) wrong("--stack", "is missing", "name the program, such as --stack llmq");
  diagnostics.throw_if_errors();
  const plan::PublishedRows rows = plan::read_published_rows(o.rows, o.models);
  const auto quiet = [](const std::string&) {};
  const predict::RowCalibration fit =
      predict::calibrate_rows(rows, choice, interchange::model_source(), quiet);
  std::fputs(predict::rows_text(fit, choice).c_str(), stdout);
  write_file_atomic(output, predict::stack_text(fit, choice));
  if (!o.judge) return;
  const auto judged = predict::judge_layouts(rows, fit, interchange::model_source(), quiet);
  std::fputs(("\n" + predict::judged_text(judged)).c_str(), stdout);
}

}  // namespace mtrain
