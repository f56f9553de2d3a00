// Rules of pipelines: how layers divide into stages, and which sizes a schedule can have.
#include <algorithm>
#include <filesystem>
#include <functional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "plan/recipe_schedule.h"
#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

void check_split(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& p = r.distributed.pipeline;
  if (p.layers_per_stage) {
    const int64_t stages = ceil_div(split_units(r), *p.layers_per_stage);
    const bool none = p.round_virtual_stages_to_pp_multiple == recipe::RoundStages::none;
    diagnostics.require(
        stages % l.pp == 0 || !none,
        {"distributed.pipeline.layers_per_stage", "distributed.pp_size", "model.num_layers"},
        fmt::format("{} layers / {} per stage = {} stages, which pp_size {} does not divide",
                    r.model.num_layers, *p.layers_per_stage, stages, l.pp),
        "set round_virtual_stages_to_pp_multiple: up or down, or change layers_per_stage");
    diagnostics.require(
        stages >= l.pp || p.round_virtual_stages_to_pp_multiple != recipe::RoundStages::down,
        {"distributed.pipeline.round_virtual_stages_to_pp_multiple",
         "distributed.pipeline.layers_per_stage"},
        fmt::format("{} stages rounded down to a multiple of pp_size {} are none", stages, l.pp),
        "use up, or fewer layers_per_stage");
    if (r.distributed.vpp_size && (stages % l.pp == 0 || !none))
      diagnostics.require(
          *r.distributed.vpp_size == l.stages_per_rank,
          {"distributed.vpp_size", "distributed.pipeline.layers_per_stage"},
          fmt::format(
              "vpp_size {} disagrees with layers_per_stage {}, which gives {} stages per rank",
              *r.distributed.vpp_size, *p.layers_per_stage, l.stages_per_rank),
          "give one of the two");
  }
  const int64_t units = split_units(r);
  const char* counted = units == r.model.num_layers ? "" : " (embedding and loss counted as asked)";
  diagnostics.require(
      units >= l.stages || p.layout, {"model.num_layers", "distributed.pp_size"},
      fmt::format("{} layers{} are fewer than the {} stages (pp_size {} x {} per rank)", units,
                  counted, l.stages, l.pp, l.stages_per_rank),
      fmt::format("use at least {} layers, or at most {} stages: a smaller pp_size, or "
                  "fewer per rank",
                  l.stages, units));
  if (p.layout || p.first_rank_layers || p.last_rank_layers || units < l.stages) return;
  if (units != r.model.num_layers)
    diagnostics.resolved("distributed.pipeline",
                         fmt::format("{} layers over {} stages: the first has {}, the last {}",
                                     r.model.num_layers, l.stages, l.layers_of_stage.front(),
                                     l.layers_of_stage.back() - r.model.mtp_layers()));
  else if (units % l.stages != 0)
    diagnostics.resolved(
        "distributed.pipeline",
        fmt::format("{} layers over {} stages: the first {} stages have one layer more", units,
                    l.stages, units % l.stages));
}

// Checks the layers of the first and the last rank (Megatron's num_layers_in_first_pipeline_stage).
void check_rank_layers(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& p = r.distributed.pipeline;
  const char *first = "distributed.pipeline.first_rank_layers",
             *last = "distributed.pipeline.last_rank_layers";
  if (!p.first_rank_layers && !p.last_rank_layers) return;
  const char* field = p.first_rank_layers ? first : last;
  diagnostics.require(!p.account_for_embedding && !p.account_for_loss,
                      {field, "distributed.pipeline.account_for_embedding",
                       "distributed.pipeline.account_for_loss"},
                      "says how the layers are split, and so does account_for_embedding or "
                      "account_for_loss",
                      "give one of the two");
  const auto schedule = p.pp_schedule;
  diagnostics.require(
      schedule != ScheduleId::v_schedule && schedule != ScheduleId::dualpipev,
      {field, "distributed.pipeline.pp_schedule"},
      fmt::format("the first rank of {} has the last stage, too", enum_name(schedule)),
      "say what each stage holds in distributed.pipeline.layout");
  const int64_t given = p.first_rank_layers.value_or(0) + p.last_rank_layers.value_or(0);
  diagnostics.require(
      can_split_by_ranks(r, l.stages), {field, "model.num_layers", "distributed.pp_size"},
      fmt::format("leaves {} of the {} layers to the other ranks; each of the {} stages (pp_size "
                  "{} x {} per rank) needs one",
                  r.model.num_layers - given, r.model.num_layers, l.stages, l.pp,
                  l.stages_per_rank),
      "choose numbers that leave every stage a layer");
}

void check_layout_string(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& p = r.distributed.pipeline;
  if (!p.layout) return;
  const char* field = "distributed.pipeline.layout";
  PipelineLayout layout;
  std::string reason;
  const char* form = "write stages separated by |, such as Et*4|t*5|t*5|t*4L";
  if (!parse_pipeline_layout(*p.layout, layout, reason)) {
    diagnostics.add(field, reason, form);
    return;
  }
  int64_t sum = 0;
  for (int64_t n : layout.layers_of_stage) sum += n;
  const auto stages = int64_t(layout.layers_of_stage.size());
  diagnostics.require(sum == r.model.num_layers, {field, "model.num_layers"},
                      fmt::format("holds {} layers, but the model has {}", sum, r.model.num_layers),
                      "each t is one layer");
  diagnostics.require(layout.predictions == r.model.mtp_num_layers, {field, "model.mtp_num_layers"},
                      fmt::format("has the letter m {} times, but mtp_num_layers is {}",
                                  layout.predictions, r.model.mtp_num_layers),
                      "write an m for each, before the L of the last stage");
  diagnostics.require(!layout.predicts_apart || !r.model.share_embeddings_and_output_weights,
                      {field, "model.share_embeddings_and_output_weights"},
                      "places m and L in two stages, which would both need the table of tied "
                      "embeddings",
                      "write m in the last stage, or do not tie the embeddings");
  diagnostics.require(stages % l.pp == 0, {field, "distributed.pp_size"},
                      fmt::format("has {} stages, which pp_size {} does not divide", stages, l.pp),
                      form);
  const std::pair<bool, const char*> others[] = {
      {p.layers_per_stage.has_value(), "layers_per_stage"},
      {p.account_for_embedding, "account_for_embedding"},
      {p.account_for_loss, "account_for_loss"},
      {p.first_rank_layers.has_value(), "first_rank_layers"},
      {p.last_rank_layers.has_value(), "last_rank_layers"}};
  for (const auto& [set, name] : others)
    diagnostics.require(!set, {field, fmt::format("distributed.pipeline.{}", name)},
                        fmt::format("says what each stage holds, and so does {}", name),
                        "give one of the two");
  if (r.distributed.vpp_size && stages % l.pp == 0)
    diagnostics.require(*r.distributed.vpp_size == stages / l.pp, {field, "distributed.vpp_size"},
                        fmt::format("has {} stages per rank, but vpp_size is {}", stages / l.pp,
                                    *r.distributed.vpp_size),
                        "remove vpp_size");
}

void check_stage_count(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const schedule::ScheduleKind& kind = schedule::schedule_kind(r.distributed.pipeline.pp_schedule);
  const int64_t n = l.stages_per_rank;
  if (n >= kind.min_stages && n <= kind.max_stages) return;
  struct Need {
    bool applies;
    const char *text, *hint;
  };
  const Need needs[] = {
      {kind.max_stages == 1, "one stage",
       "use interleaved_1f1b, or one per rank: vpp_size: 1, or pp_size x layers_per_stage = "
       "num_layers"},
      {kind.max_stages == 2, "exactly two stages", "set vpp_size: 2 or a fitting layers_per_stage"},
      {true, "at least two stages", "use 1f1b, or set vpp_size: 2"}};
  const Need& need = *std::ranges::find_if(needs, &Need::applies);
  refuse({"distributed.pipeline.pp_schedule", "distributed.vpp_size",
          "distributed.pipeline.layers_per_stage", "model.num_layers"},
         fmt::format("{} needs {} per rank, the recipe gives {}", kind.name, need.text, n),
         need.hint, diagnostics);
}

// How messages describe the number of micro-batches. It follows from the batch of a flush: the
// global batch, or AutoModel's local batch.
struct BatchWords {
  std::string field, count, batch;
  int64_t samples;  // samples of the batch per micro-batch of a rank

  std::string raise_to(int64_t micro_batches) const {
    return fmt::format("raise {} to {}", batch, micro_batches * samples);
  }
};

BatchWords batch_words(const Recipe& r, const Layout& l) {
  if (local_batch_is_flush(r))
    return {"train.micro_batch_size",
            fmt::format("{} micro-batches a flush (local batch {} / micro-batch {})",
                        l.micro_batches, r.train.micro_batch_size, l.micro_batch),
            "local_batch_size", l.micro_batch};
  return {"train.global_batch_size",
          fmt::format("{} micro-batches (global batch {} / dp {} / micro-batch {})",
                      l.micro_batches, r.train.global_batch_size, l.dp, l.micro_batch),
          "global_batch_size", l.dp * l.micro_batch};
}

// Whether the schedule can have so many micro-batches.
bool can_have(const Recipe& r, const Layout& l, int64_t micro_batches) {
  const auto& p = r.distributed.pipeline;
  if (l.pp == 1 || p.pp_schedule_csv) return true;
  const schedule::ScheduleKind& kind = schedule::schedule_kind(p.pp_schedule);
  if (micro_batches < kind.min_micro_batches * l.pp) return false;
  if (!kind.in_groups) return true;
  const auto& group = p.microbatch_group_size_per_vp_stage;
  return group ? schedule::legal_group(*group, micro_batches, l.pp)
               : schedule::legal_rounds(micro_batches, l.pp);
}

// Returns the numbers of micro-batches near `from` that the schedule can have, and the batches
// that give them: "4 or 8 micro-batches: global_batch_size 16 or 32".
std::string legal_counts(const Recipe& r, const Layout& l, const BatchWords& words) {
  const auto near = [&](int64_t step) {
    std::string text;
    const int64_t m = l.micro_batches;
    for (int64_t low = m - 1; low >= 1 && text.empty(); --low)
      if (can_have(r, l, low)) text = std::to_string(low * step);
    for (int64_t high = m + 1; high <= 4 * m + 64; ++high)
      if (can_have(r, l, high))
        return text + (text.empty() ? "" : " or ") + std::to_string(high * step);
    return text;
  };
  return fmt::format("{} micro-batches: {} {}", near(1), words.batch, near(words.samples));
}

void check_micro_batches(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& p = r.distributed.pipeline;
  const schedule::ScheduleKind& kind = schedule::schedule_kind(p.pp_schedule);
  const int64_t m = l.micro_batches;
  const BatchWords words = batch_words(r, l);
  const std::string& count = words.count;
  const auto& group = p.microbatch_group_size_per_vp_stage;
  if (group && !kind.in_groups)
    diagnostics.add("distributed.pipeline.microbatch_group_size_per_vp_stage",
                    fmt::format("is read by interleaved schedules only, not by {}", kind.name),
                    "remove it");
  // If the batch size does not divide, another rule's hint names one that the schedule can have.
  if (r.train.global_batch_size % batch_multiple(r, l) != 0) return;
  if (kind.in_groups && !group && !schedule::legal_rounds(m, l.pp))
    refuse({words.field, "distributed.pipeline.pp_schedule"},
           fmt::format("{1} on pp_size {2} make {3} rounds of {0}, each of at least "
                       "{2}, and do not divide into {3} equal ones",
                       kind.name, count, l.pp, std::max<int64_t>(1, m / l.pp)),
           fmt::format("use {}", legal_counts(r, l, words)), diagnostics);
  if (kind.in_groups && group && !schedule::legal_group(*group, m, l.pp)) {
    const std::string groups =
        schedule::nearest_legal(std::min(*group, m + 1), 4 * m + 64,
                                [&](int64_t k) { return schedule::legal_group(k, m, l.pp); });
    refuse({"distributed.pipeline.microbatch_group_size_per_vp_stage", words.field},
           fmt::format(
               "a group of {} must lie in [pp_size {}, {}], and the rest of {} must be 0 or at "
               "least pp_size",
               *group, l.pp, m, count),
           groups.empty() ? words.raise_to(l.pp) + fmt::format(", and use a group of {}", l.pp)
                          : fmt::format("use a group of {}", groups),
           diagnostics);
  }
  const int64_t fewest = kind.min_micro_batches * l.pp;
  if (m < fewest)
    refuse({words.field, "distributed.pipeline.pp_schedule"},
           fmt::format("{} needs at least {} x pp_size = {}, there are {}", kind.name,
                       kind.min_micro_batches, fewest, count),
           words.raise_to(fewest), diagnostics);
  if (p.pp_schedule == ScheduleId::one_f_one_b && m < l.pp)
    diagnostics.warn(
        words.field,
        fmt::format("{} are fewer than pp_size {}: some stages are never busy together", count,
                    l.pp),
        words.raise_to(l.pp));
}

constexpr uintmax_t kMaxCsv = 64 << 20;  // bytes

void check_csv(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& path = r.distributed.pipeline.pp_schedule_csv;
  const char* field = "distributed.pipeline.pp_schedule_csv";
  for (const char* other : {"distributed.pipeline.pp_schedule",
                            "distributed.pipeline.microbatch_group_size_per_vp_stage"})
    if (r.given(other)) diagnostics.warn(other, "is ignored because pp_schedule_csv is set");
  // Reading a device or a pipe might never end.
  std::error_code ignored;
  if (std::filesystem::exists(*path, ignored) &&
      (!std::filesystem::is_regular_file(*path, ignored) ||
       std::filesystem::file_size(*path, ignored) > kMaxCsv))
    return diagnostics.add(field, *path + " is not a file, or too large for a schedule",
                           "give the path of a CSV file with a row per rank");
  std::string text;
  try {
    text = read_file(*path);
  } catch (const UserError& e) {
    return diagnostics.add(field, e.message(), "give the path of a CSV file with a row per rank");
  }
  try {
    const ScheduleRows rows = parse_schedule_csv(text);
    if (int64_t(rows.size()) != l.pp)
      throw UserError(fmt::format("has {} rows, but pp_size is {}", rows.size(), l.pp));
    schedule_from_rows(rows, l.stages, l.micro_batches);
  } catch (const UserError& e) {
    const std::string sizes = fmt::format("{} stages and {} micro-batches follow from the recipe",
                                          l.stages, l.micro_batches);
    diagnostics.add(field, *path + ": " + e.message(), e.hint().empty() ? sizes : e.hint());
  }
}

void check_flushes(const Recipe& r, Diagnostics& diagnostics) {
  const auto& size = r.distributed.pipeline.pp_microbatch_size;
  if (!size || !r.given("train.micro_batch_size")) return;
  const int64_t local = r.train.micro_batch_size;
  diagnostics.require(
      local % *size == 0, {"distributed.pipeline.pp_microbatch_size", "train.micro_batch_size"},
      fmt::format("the local batch of {} is not a whole number of micro-batches of {}", local,
                  *size),
      fmt::format("use a divisor of {}, or a local batch of {}", local,
                  nearest_multiples(local, *size)));
}

// Returns a hint for a section with the default schedule, in the form in which pp_size is written.
std::string add_pipeline(const Recipe& r, const Layout& l) {
  const char* name = l.stages_per_rank > 1 ? "interleaved_1f1b" : "1f1b";
  const auto origin = r.origins.find("distributed.pp_size");
  if (origin != r.origins.end() && origin->second == recipe::Origin::command_line)
    return fmt::format("add distributed.pipeline.pp_schedule={}", name);
  return fmt::format(
      "add it inside distributed: `distributed: {{pp_size: {}, pipeline: {{pp_schedule: {}}}}}`",
      l.pp, name);
}

}  // namespace

void validate_pipeline(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const bool block = r.given_section("distributed.pipeline");
  if (l.pp == 1) {
    if (block)
      warn_or_refuse(r, "distributed.pipeline", "is ignored because pp_size is 1", diagnostics);
    if (r.distributed.vpp_size.value_or(1) > 1)
      warn_or_refuse(r, "distributed.vpp_size", "is ignored because pp_size is 1", diagnostics);
    return;
  }
  if (r.distributed.strategy == recipe::Strategy::ddp ||
      r.distributed.strategy == recipe::Strategy::megatron_fsdp)
    return;  // they have no pipeline; validate_strategy says so
  diagnostics.require(block, {"distributed.pp_size"},
                      fmt::format("pp_size {} needs the section distributed.pipeline", l.pp),
                      add_pipeline(r, l));
  check_layout_string(r, l, diagnostics);
  check_split(r, l, diagnostics);
  check_rank_layers(r, l, diagnostics);
  check_flushes(r, diagnostics);
  if (r.distributed.pipeline.pp_schedule_csv) return check_csv(r, l, diagnostics);
  check_stage_count(r, l, diagnostics);
  check_micro_batches(r, l, diagnostics);
}

int64_t batch_multiple(const Recipe& r, const Layout& l) {
  return l.dp * (local_batch_is_flush(r) ? r.train.micro_batch_size : l.micro_batch);
}

std::string legal_batches(const Recipe& r, const Layout& l) {
  const int64_t multiple = batch_multiple(r, l), below = r.train.global_batch_size / multiple;
  // In AutoModel's spelling a pipeline works on the local batch, not on the global one.
  const auto fits = [&](int64_t count) { return local_batch_is_flush(r) || can_have(r, l, count); };
  std::string text;
  for (int64_t count = below; count >= 1 && text.empty(); --count)
    if (fits(count)) text = std::to_string(count * multiple);
  for (int64_t count = below + 1; count <= 4 * below + 64 + 4 * l.pp; ++count)
    if (fits(count)) return text + (text.empty() ? "" : " or ") + std::to_string(count * multiple);
  return text;
}

}  // namespace mtrain::plan
