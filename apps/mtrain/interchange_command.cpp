// `mtrain import hf` and `mtrain export hf`.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "base/strings.h"
#include "commands.h"
#include "interchange/checkpoint_record.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "interchange/locate_checkpoint.h"

namespace mtrain {

void add_import_command(CLI::App& app) {
  struct Options {
    std::string folder, output;
    std::vector<std::string> ignore_keys;
    bool dry_run = false, mtp = false;
  };
  auto* command = app.add_subcommand("import", "import a model from another program");
  command->require_subcommand(1);
  auto* hf = command->add_subcommand("hf", "a Hugging Face folder: config.json and safetensors");
  auto o = std::make_shared<Options>();
  hf->add_option("folder", o->folder, "the folder")->required();
  auto* output = hf->add_option("--output", o->output, "new folder of checkpoints to write");
  hf->add_flag("--dry-run", o->dry_run,
               "only list what the folder holds, and every tensor that is missing or unmapped")
      ->excludes(output);
  hf->add_option("--ignore-keys", o->ignore_keys,
                 "keys of config.json to ignore: mtrain does not know them, and they do not affect "
                 "what the model computes (model.ignore_keys)")
      ->delimiter(',');
  hf->add_flag("--mtp", o->mtp,
               "also import the layers of multi-token prediction (num_nextn_predict_layers), which "
               "training can continue (model.mtp_num_layers)");
  for (CLI::App* each : {command, hf})
    set_examples(*each, {"mtrain import hf hf/first --dry-run",
                         "mtrain import hf hf/first --output checkpoints/first"});
  hf->callback([o] {
    if (o->output.empty() && !o->dry_run)
      throw UserError("neither --output nor --dry-run is given",
                      "give --output OUT to write a checkpoint, or --dry-run to check the folder");
    const interchange::HfFolder folder = interchange::open_hf_folder(
        o->folder, o->ignore_keys, o->mtp ? interchange::kAllMtpLayers : 0);
    print_lines(interchange::describe(folder));
    if (o->dry_run) return;
    print_lines(fmt::format("written: {}\n", interchange::import_hf(folder, o->output).string()));
  });
}

void add_export_command(CLI::App& app) {
  struct Options {
    std::string run, output, dtype, shard = "5GB", base;
    bool merge = false;
  };
  auto* command = app.add_subcommand("export", "export a model to other programs");
  command->require_subcommand(1);
  auto* hf = command->add_subcommand("hf", "a folder that transformers loads");
  auto o = std::make_shared<Options>();
  hf->add_option("run", o->run, "run folder (its newest checkpoint), or one checkpoint")
      ->required();
  hf->add_option("--output", o->output, "new folder to write")->required();
  hf->add_option(
        "--dtype", o->dtype,
        "element type of all weights; default: imported tensors keep theirs, others are fp32")
      ->check(one_of({"bf16", "fp16", "fp32"}));
  hf->add_option("--max-shard-size", o->shard, "maximum size of a file, such as 5GB or 500MB")
      ->capture_default_str();
  hf->add_flag("--merge", o->merge,
               "merge adapters (LoRA) into the weights; default: write a folder of adapters that "
               "peft loads");
  hf->add_option("--base", o->base,
                 "the base model of adapters, if model.from of the recipe has moved");
  for (CLI::App* each : {command, hf})
    set_examples(*each, {"mtrain export hf runs/first --output hf/first",
                         "mtrain export hf runs/lora --output hf/merged --merge",
                         "mtrain export hf runs/first --output hf/bf16 --dtype bf16"});
  hf->callback([o] {
    interchange::ExportOptions options;
    options.max_shard_bytes = interchange::parse_bytes(o->shard);
    options.merge = o->merge;
    options.base = o->base;
    if (!o->dtype.empty())
      options.dtype = o->dtype == "bf16"   ? DType::bf16
                      : o->dtype == "fp16" ? DType::f16
                                           : DType::f32;
    const auto found = interchange::locate_checkpoint(o->run);
    if (!found)
      throw UserError(fmt::format("{} holds no complete checkpoint", o->run),
                      "give a run folder or a checkpoint folder");
    interchange::report_checkpoint(found->path);
    const interchange::Exported done = interchange::export_hf(found->path, o->output, options);
    print_lines(fmt::format("written: {} ({}{}, {} parameters, {} in {} file{}{})\n", o->output,
                            done.adapters ? "adapters of " : "", done.model_type,
                            human_count(double(done.parameters)), human_bytes(double(done.bytes)),
                            done.files, done.files == 1 ? "" : "s",
                            done.side_files.empty() ? "" : "; copied " + done.side_files));
  });
}

}  // namespace mtrain
