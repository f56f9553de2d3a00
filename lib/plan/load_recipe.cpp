#include "plan/load_recipe.h"

#include <cctype>

#include <fmt/core.h>

#include "base/gpu_facts.h"
#include "base/strings.h"
#include "plan/change_layout.h"
#include "plan/layout.h"
#include "plan/overlap.h"
#include "plan/recipe_schedule.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"

namespace mtrain::plan {
namespace {

// Whether the recipe asks for something that only ranks on CPUs support.
bool asks_for_cpu(const Recipe& r) {
  return r.comm.backend == CommBackend::gloo || r.comm.link.emulated() ||
         r.debug.compute_slowdown != 1 || r.debug.emulate_fp8;
}

// Returns why a plan that starts no rank is for hardware.gpu, and not for this machine; empty if it
// is for this machine.
std::string why_for_other_gpus(const Machine& machine, const Recipe& r, int64_t world) {
  if (!machine.dry_run || asks_for_cpu(r)) return "";
  if (r.given("hardware.gpu"))
    return fmt::format("the recipe names hardware.gpu: {}", enum_name(r.hardware.gpu));
  const int64_t ranks = layout_of(r, world).world;
  if (machine.gpus > 0 || ranks <= machine.cores) return "";
  return fmt::format("{} ranks are more than the {} core{} of this host: planned for {}", ranks,
                     machine.cores, machine.cores == 1 ? "" : "s", enum_name(r.hardware.gpu));
}

void choose_device(const Machine& machine, int64_t world, Recipe& r, Diagnostics& diagnostics) {
  if (r.train.device != recipe::DeviceChoice::automatic) return;
  const bool nccl = r.comm.backend == CommBackend::nccl;
  if (const std::string why = why_for_other_gpus(machine, r, world); !why.empty()) {
    r.train.device = recipe::DeviceChoice::cuda;
    r.origins["train.device"] = recipe::Origin::derived;
    return diagnostics.resolved("train.device", "cuda, because " + why);
  }
  if (!nccl && machine.gpus > 0 && machine.gpus < machine.ranks_per_host)
    return diagnostics.resolved(
        "train.device",
        fmt::format("cpu, because the {} ranks of this host have {} GPU{}", machine.ranks_per_host,
                    machine.gpus, machine.gpus == 1 ? "" : "s"));
  if (!nccl && (machine.gpus == 0 || asks_for_cpu(r))) return;  // ranks compute on the CPU
  r.train.device = recipe::DeviceChoice::cuda;
  r.origins["train.device"] = recipe::Origin::derived;
  diagnostics.resolved("train.device",
                       machine.gpus > 0
                           ? fmt::format("cuda, because this machine has {}",
                                         machine.gpu_name.empty() ? "a GPU" : machine.gpu_name)
                           : "cuda, because comm.backend is nccl");
}

// Returns the gigabytes in a GPU's name, such as "nvidia a100-sxm4-40gb"; 0 if it has none.
double memory_in_name(const std::string& name) {
  for (size_t at = name.find("gb"); at != std::string::npos; at = name.find("gb", at + 1)) {
    size_t first = at;
    while (first > 0 && std::isdigit(static_cast<unsigned char>(name[first - 1]))) --first;
    if (first < at) return std::stod(name.substr(first, at - first));
  }
  return 0;
}

constexpr const char* kPartOfGpu = " mig";  // launch::visible_gpus() ends a part's name with this

// Sets hardware.gpu to this machine's GPU. Rules and estimates use it.
void choose_gpu(const Machine& machine, Recipe& r, Diagnostics& diagnostics) {
  if (r.train.device != recipe::DeviceChoice::cuda || r.given("hardware.gpu")) return;
  // A plan for other machines uses hardware.gpu as it is, with its usual memory.
  if (machine.dry_run && machine.gpus == 0) r.origins["hardware.gpu"] = recipe::Origin::derived;
  // AutoModel's recipes do not name the GPU that they are for.
  if (machine.dry_run && machine.gpus == 0 && r.automodel &&
      r.mixed_precision.fp8_recipe == recipe::Fp8Recipe::mxfp8) {
    r.hardware.gpu = Gpu::b200;
    return diagnostics.resolved("hardware.gpu", "b200, which computes in mxfp8");
  }
  if (machine.gpu_name.empty()) return;
  const std::string name = to_lower(machine.gpu_name);
  // A part of a GPU (MIG) has the name of the full GPU, which does not give the part's memory.
  const bool whole = !name.ends_with(kPartOfGpu);
  const double gb = whole ? memory_in_name(name) : 0;
  if (gb > 0 && !r.given("hardware.memory_gb")) {
    r.hardware.memory_gb = gb;
    r.origins["hardware.memory_gb"] = recipe::Origin::derived;
  }
  if (const GpuFacts* known = find_gpu(name)) {
    if (whole) r.origins["hardware.gpu"] = recipe::Origin::derived;  // its memory is known, too
    if (r.hardware.gpu == known->gpu) return;
    r.hardware.gpu = known->gpu;
    return diagnostics.resolved("hardware.gpu",
                                fmt::format("{}, which this machine has", enum_name(known->gpu)));
  }
  diagnostics.resolved("hardware.gpu",
                       fmt::format("{} is unknown here: rules and estimates are those of a {}",
                                   machine.gpu_name, enum_name(r.hardware.gpu)));
}

// Chooses the schedule of a pipeline if the recipe does not. In Megatron's spelling and under
// megatron_ddp, a pipeline needs no section distributed.pipeline. Several stages per rank then mean
// the interleaved schedule.
void choose_schedule(Recipe& r, Diagnostics& diagnostics) {
  if (r.distributed.pp_size == 1 || r.given("distributed.pipeline.pp_schedule") ||
      r.distributed.pipeline.pp_schedule_csv)
    return;
  const bool section = r.given_section("distributed.pipeline");
  const bool needs_none = r.written_in("distributed.pp_size", "model") ||
                          r.distributed.strategy == recipe::Strategy::megatron_ddp;
  if (!section && !needs_none) return;  // validate_pipeline() asks for the section
  const bool interleaved = layout_of(r, 0).stages_per_rank > 1;
  if (section && !interleaved) return;  // 1f1b is the section's default
  r.sections.insert("distributed.pipeline");
  r.distributed.pipeline.pp_schedule =
      interleaved ? ScheduleId::interleaved_1f1b : ScheduleId::one_f_one_b;
  r.origins["distributed.pipeline.pp_schedule"] = recipe::Origin::derived;
  diagnostics.resolved("distributed.pipeline.pp_schedule",
                       interleaved ? "interleaved_1f1b, because a rank has several stages"
                                   : "1f1b, because a rank has one stage");
}

Recipe complete(std::optional<Recipe> recipe, Diagnostics& diagnostics, int64_t world,
                const Machine& machine) {
  if (!recipe) return {};
  choose_device(machine, world, *recipe, diagnostics);
  choose_gpu(machine, *recipe, diagnostics);
  choose_schedule(*recipe, diagnostics);
  validate_recipe(*recipe, diagnostics, world);
  return std::move(*recipe);
}

}  // namespace

Machine machine_with(const std::vector<std::string>& gpus, int ranks_per_host) {
  return {.gpus = int(gpus.size()),
          .gpu_name = gpus.empty() ? "" : gpus[0],
          .ranks_per_host = ranks_per_host};
}

Recipe load_recipe(const recipe::ModelSource& models, const std::string& path,
                   const std::vector<std::string>& overrides, Diagnostics& diagnostics,
                   int64_t world, const Machine& machine, const std::string& saved_model) {
  return complete(read_recipe(models, path, overrides, diagnostics, saved_model), diagnostics,
                  world, machine);
}

Recipe load_recipe_text(const recipe::ModelSource& models, const std::string& text,
                        const std::string& name, const std::vector<std::string>& overrides,
                        Diagnostics& diagnostics, int64_t world, const Machine& machine) {
  return complete(read_recipe_text(models, text, name, overrides, diagnostics), diagnostics, world,
                  machine);
}

void check_machine(const Recipe& r, const Machine& machine, Diagnostics& diagnostics) {
  if (r.comm.backend != CommBackend::nccl || r.given("train.device") || machine.gpus > 0) return;
  diagnostics.add("comm.backend",
                  "backend nccl moves GPU memory, and this machine has no GPU that this build can "
                  "compute on",
                  "set comm.backend=auto (dist_env.backend): ranks on CPUs then take gloo");
}

void resolve_epochs(Recipe& recipe, int64_t samples, Diagnostics& diagnostics) {
  recipe::resolve_epochs(recipe, samples, diagnostics);
  validate_schedule(recipe, diagnostics);
}

void validate_recipe(const Recipe& recipe, Diagnostics& diagnostics, int64_t world) {
  const Layout layout = layout_of(recipe, world);
  if (!validate_sizes(recipe, layout, diagnostics)) return;
  validate_rules(recipe, layout, resolve_overlap(recipe, layout), diagnostics);
}

void validate_layout(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                     Diagnostics& diagnostics) {
  if (!validate_sizes(recipe, layout, diagnostics)) return;
  validate_layout_rules(recipe, layout, overlap, diagnostics);
  check_supported(recipe, diagnostics);
}

void validate_recomputation(const Recipe& recipe, Diagnostics& diagnostics) {
  validate_train(recipe, diagnostics);
}

}  // namespace mtrain::plan
