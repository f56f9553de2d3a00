// A Recipe holds every setting of a run. Each section is a plain struct in a header of its own
// (recipe/schema/).
#pragma once
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "recipe/load/diagnostics.h"
#include "recipe/schema/checkpoint.h"
#include "recipe/schema/comm.h"
#include "recipe/schema/comm_overlap.h"
#include "recipe/schema/dataset.h"
#include "recipe/schema/debug.h"
#include "recipe/schema/distributed.h"
#include "recipe/schema/field.h"
#include "recipe/schema/mixed_precision.h"
#include "recipe/schema/model.h"
#include "recipe/schema/optimizer.h"
#include "recipe/schema/peft.h"
#include "recipe/schema/recompute.h"
#include "recipe/schema/tokenizer.h"
#include "recipe/schema/train.h"

namespace mtrain::recipe {

class ModelSource;

// The origin of a field's value; `derived` values follow from other fields.
enum class Origin { by_default, recipe, command_line, derived };

struct Recipe {
  ModelConfig model;
  DatasetConfig dataset;
  TokenizerConfig tokenizer;
  TrainConfig train;
  ValidationConfig validation;
  MixedPrecisionConfig mixed_precision;
  PeftConfig peft;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  RecomputeConfig recompute;
  DistributedConfig distributed;
  DdpConfig ddp;
  CommOverlapConfig comm_overlap;
  PackedSequenceConfig packed_sequence;
  CommConfig comm;
  LaunchConfig launch;
  HardwareConfig hardware;
  CheckpointConfig checkpoint;
  DebugConfig debug;

  // The origin of each value, by field path; a field that is not listed has its default.
  std::map<std::string, Origin, std::less<>> origins;
  // The name or alias under which each given field is written, by field path.
  std::map<std::string, std::string, std::less<>> spellings;
  // The sections that the recipe or an override contains, including empty ones. A field that is
  // written under an alias adds the first section of the alias.
  std::set<std::string, std::less<>> sections;
  // The references in the values of fields, as they were written, by field path.
  std::map<std::string, std::string, std::less<>> references;
  // Values of other systems' keys, which set fields or are compared with them, by the key's path.
  std::map<std::string, std::string, std::less<>> foreign;
  Origin origin(std::string_view path) const;
  // Whether the field is written under a name in `section`, or under exactly the name `spelling`.
  // Other systems have the same setting in different sections.
  bool written_in(std::string_view path, std::string_view section) const;
  bool written_as(std::string_view path, std::string_view spelling) const;
  bool given(std::string_view path) const;          // set by the recipe or the command line
  bool given_section(std::string_view path) const;  // the section itself, or any field below it
  // Whether the recipe is one of AutoModel, whose defaults then hold.
  bool automodel = false;
  // The tokens of dataset.train_samples and validation_samples, once a run has made them.
  std::vector<std::string> train_tokens, validation_tokens;
  // The samples of train.epochs, once resolve_epochs() has counted them.
  int64_t epoch_samples = 0;
  // False if train.epochs is given, and resolve_epochs() has not yet converted it to steps.
  // train.steps, and the values that would follow from it, then have no meaning.
  bool steps_known() const;

  static constexpr auto fields = std::tuple{
      Field{"model", &Recipe::model, "the network"},
      Field{"dataset", &Recipe::dataset, "the training data"},
      Field{"tokenizer", &Recipe::tokenizer, "conversion of text to tokens", {.shorthand = "type"}},
      Field{"train", &Recipe::train, "length, batches, folders"},
      Field{"validation", &Recipe::validation, "loss on held-out text"},
      Field{"mixed_precision", &Recipe::mixed_precision, "element types", {.shorthand = "name"}},
      Field{"peft", &Recipe::peft, "adapters (LoRA) trained instead of all weights"},
      Field{"optimizer", &Recipe::optimizer, "weight updates"},
      Field{"lr_scheduler", &Recipe::lr_scheduler, "learning rate over the steps"},
      Field{"recompute",
            &Recipe::recompute,
            "activations recomputed in backward",
            {.shorthand = "granularity"}},
      Field{"distributed", &Recipe::distributed, "layout over the ranks"},
      Field{"ddp", &Recipe::ddp, "gradient reduction in buckets"},
      Field{"comm_overlap", &Recipe::comm_overlap, "communication hidden behind compute"},
      Field{"packed_sequence", &Recipe::packed_sequence, "several documents in a sample"},
      Field{"comm", &Recipe::comm, "communication between ranks"},
      Field{"launch", &Recipe::launch, "the ranks' environment"},
      Field{"hardware", &Recipe::hardware, "the machine, for checks and estimates"},
      Field{"checkpoint", &Recipe::checkpoint, "saving and resuming"},
      Field{"debug", &Recipe::debug, "checks and records"}};
};

// Returns the tokens of a training sample: those of a pack if documents are packed, else
// dataset.seq_length.
int64_t sample_length(const Recipe& recipe);

// Reads the file, applies the overrides ("optimizer.lr=1e-4", "~optimizer.lr") and fills in what
// follows from other fields. Mistakes are collected in `diagnostics`. Returns nothing if the file
// cannot be read or is not YAML. plan/load_recipe.h also checks the fields against each other.
// `saved_model` is the text of a printed recipe. Its model is used instead of the folder that
// model.from names, which may no longer exist. If the text is empty, the folder is read.
std::optional<Recipe> read_recipe(const ModelSource& models, const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  Diagnostics& diagnostics, const std::string& saved_model = {});

// Does the same for recipe text that is not in a file; messages call it `name`.
std::optional<Recipe> read_recipe_text(const ModelSource& models, const std::string& text,
                                       const std::string& name,
                                       const std::vector<std::string>& overrides,
                                       Diagnostics& diagnostics,
                                       const std::string& saved_model = {});

// Sets the steps of a recipe with train.epochs, and the values that follow from them. `samples` is
// the number of samples in an epoch of dataset.train. Steps are rounded up: the last one takes its
// missing samples from the next epoch.
void resolve_epochs(Recipe& recipe, int64_t samples, Diagnostics& diagnostics);

// Returns what a training sample is.
DataForm data_form(const Recipe& recipe);
// Returns whether documents are sequences of their own in a micro-batch: in packs and in rows.
bool by_document(const Recipe& recipe);

// Returns YAML that loads to the same recipe. It has train.steps instead of train.epochs once the
// steps are known. With `origins`, each line names the origin of its value.
std::string print_recipe(const Recipe& recipe, bool origins = true);
// Returns such YAML of these top-level sections alone, without origins.
std::string print_sections(const Recipe& recipe, std::initializer_list<std::string_view> sections);

}  // namespace mtrain::recipe

// All libraries use this name.
namespace mtrain {
using recipe::Recipe;
}  // namespace mtrain
