#include "plan/layout.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/core.h>

#include "base/math.h"
#include "plan/recipe_schedule.h"
#include "recipe/recipe.h"

namespace mtrain::plan {
namespace {

constexpr int64_t kMaxWorld = 1 << 24;  // keeps products of sizes within 64 bits

int64_t stages_per_rank(const Recipe& r) {
  const auto& d = r.distributed;
  if (d.pp_size == 1) return 1;
  PipelineLayout layout;
  std::string reason;
  if (d.pipeline.layout && parse_pipeline_layout(*d.pipeline.layout, layout, reason))
    return std::max<int64_t>(1, int64_t(layout.layers_of_stage.size()) / d.pp_size);
  if (d.pipeline.layers_per_stage) {
    const int64_t stages = ceil_div(split_units(r), *d.pipeline.layers_per_stage);
    const bool up = d.pipeline.round_virtual_stages_to_pp_multiple == recipe::RoundStages::up;
    return std::max<int64_t>(1, up ? ceil_div(stages, d.pp_size) : stages / d.pp_size);
  }
  if (d.vpp_size) return *d.vpp_size;
  return schedule::schedule_kind(d.pipeline.pp_schedule).max_stages == 1 ? 1 : 2;
}

// Returns the smallest dp that fits the recipe. With dp_replicate_size, each group that shards has
// at least two ranks. With ep_size, ep divides the dp x cp ranks of a stage, or dp x cp x tp if
// experts are undivided.
int64_t min_dp(const Recipe& r) {
  const auto& d = r.distributed;
  if (d.dp_size) return *d.dp_size;
  const int64_t replicate = d.dp_replicate_size.value_or(1);
  const int64_t shared = d.cp_size * (expert_tp(r) == 1 ? d.tp_size : 1);
  const int64_t experts = d.ep_size / std::gcd(d.ep_size, shared);
  const int64_t unit = std::lcm(replicate, experts);
  const int64_t least = replicate > 1 && unit == replicate ? 2 * replicate : unit;
  const int64_t samples = r.train.global_batch_size / r.train.micro_batch_size;
  for (int64_t dp = least; dp <= samples; dp += unit)
    if (samples % dp == 0) return dp;
  return least;
}

// Splits the layers if the recipe gives the layers of the first or the last rank. Each of these
// ranks divides its layers evenly over its stages. The stages of the other ranks divide the rest
// evenly.
std::vector<int64_t> split_by_ranks(const Recipe& r, int64_t stages) {
  const auto& p = r.distributed.pipeline;
  const int64_t pp = r.distributed.pp_size, per_rank = stages / pp;
  const int64_t first = p.first_rank_layers.value_or(0), last = p.last_rank_layers.value_or(0);
  const int64_t between = per_rank * (pp - (first > 0) - (last > 0));
  const int64_t rest = r.model.num_layers - first - last;
  if (!can_split_by_ranks(r, stages)) return {};
  std::vector<int64_t> layers;
  int64_t k = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t rank = stage % pp, chunk = stage / pp;
    const int64_t whole = rank == 0 && first > 0 ? first : rank == pp - 1 && last > 0 ? last : 0;
    if (whole > 0)
      layers.push_back(whole / per_rank + (chunk < whole % per_rank));
    else
      layers.push_back(rest / between + (k++ < rest % between));
  }
  return layers;
}

std::vector<int64_t> split_layers(const Recipe& r, int64_t stages) {
  const auto& p = r.distributed.pipeline;
  std::vector<int64_t> layers;
  std::string reason;
  if (r.distributed.pp_size == 1) return {r.model.num_layers};
  PipelineLayout layout;
  if (p.layout && parse_pipeline_layout(*p.layout, layout, reason)) {
    // The rules report a layout whose stages the ranks cannot share evenly.
    if (int64_t(layout.layers_of_stage.size()) != stages) return {};
    return layout.layers_of_stage;
  }
  if (p.first_rank_layers || p.last_rank_layers) return split_by_ranks(r, stages);
  // A mistyped size must not cost memory; the rules report it.
  const int64_t units = split_units(r);
  if (stages > units) return {};
  layers.assign(size_t(stages), units / stages);
  for (int64_t i = 0; i < units % stages; ++i) ++layers[size_t(i)];
  layers.front() -= p.account_for_embedding;
  layers.back() -= p.account_for_loss;
  return layers;
}

// Whether a layout string says so. The rules report one that is wrong.
bool predicts_apart(const Recipe& r) {
  const auto& d = r.distributed;
  PipelineLayout layout;
  std::string reason;
  return d.pp_size > 1 && d.pipeline.layout &&
         parse_pipeline_layout(*d.pipeline.layout, layout, reason) && layout.predicts_apart;
}

}  // namespace

int64_t split_units(const Recipe& r) {
  const auto& p = r.distributed.pipeline;
  return r.model.num_layers + p.account_for_embedding + p.account_for_loss;
}

bool can_split_by_ranks(const Recipe& r, int64_t stages) {
  const auto& p = r.distributed.pipeline;
  const int64_t pp = r.distributed.pp_size, per_rank = stages / pp;
  const int64_t first = p.first_rank_layers.value_or(0), last = p.last_rank_layers.value_or(0);
  const int64_t between = per_rank * (pp - (first > 0) - (last > 0));
  const int64_t rest = r.model.num_layers - first - last;
  const auto fills = [&](int64_t layers) { return layers == 0 || layers >= per_rank; };
  return fills(first) && fills(last) && (between > 0 ? rest >= between : rest == 0);
}

int64_t expert_tp(const Recipe& r) {
  const auto& d = r.distributed;
  return r.model.moe.num_experts > 0 ? d.expert_tp_size.value_or(d.tp_size) : d.tp_size;
}

int64_t expert_ranks(const Recipe& r, const Layout& l) {
  const int64_t dp = l.dp_replicate > 1 ? l.dp_shard : l.dp;
  return dp * l.cp * (expert_tp(r) == 1 ? l.tp : 1);
}

int64_t deferred_outputs(const Recipe& r, const Layout& l) {
  const int64_t limit = r.comm_overlap.wgrad_deferral_limit;
  return limit == 0 ? l.micro_batches : std::min(limit, l.micro_batches);
}

ShardLevel shard_level(const Recipe& r) {
  const auto& d = r.distributed;
  switch (d.strategy) {
    case recipe::Strategy::ddp: return ShardLevel::nothing;
    case recipe::Strategy::megatron_ddp:
      return r.ddp.use_distributed_optimizer ? ShardLevel::optimizer : ShardLevel::nothing;
    case recipe::Strategy::fsdp2: return ShardLevel::parameters;
    case recipe::Strategy::megatron_fsdp: break;
  }
  switch (d.zero_dp_strategy) {
    case recipe::ZeroStrategy::none: return ShardLevel::nothing;
    case recipe::ZeroStrategy::optimizer: return ShardLevel::optimizer;
    case recipe::ZeroStrategy::gradients: return ShardLevel::gradients;
    default: return ShardLevel::parameters;
  }
}

bool local_batch_is_flush(const Recipe& r) {
  return r.distributed.pp_size > 1 && r.distributed.pipeline.pp_microbatch_size &&
         r.written_as("train.micro_batch_size", "step_scheduler.local_batch_size");
}

int64_t flushes_of(const Recipe& r, int64_t dp) {
  if (!local_batch_is_flush(r)) return 1;
  return std::max<int64_t>(1, r.train.global_batch_size / dp / r.train.micro_batch_size);
}

int64_t sequence_multiple(const Recipe& r, const Layout& l) {
  const int64_t chunks = l.cp > 1 ? 2 * l.cp : 1;
  return r.distributed.sequence_parallel ? std::lcm(chunks, l.tp * l.cp) : chunks;
}

std::string either(const std::vector<int64_t>& values) {
  std::string text = std::to_string(values.front());
  for (size_t i = 1; i < values.size(); ++i)
    text += fmt::format("{}{}", i + 1 == values.size() ? " or " : ", ", values[i]);
  return text;
}

std::string nearest_multiples(int64_t value, int64_t of) {
  const int64_t low = value / of * of, high = low + of;
  if (low == value) return fmt::format("{}", low);
  return low > 0 ? fmt::format("{} or {}", low, high) : fmt::format("{}", high);
}

int64_t padded_vocab(int64_t vocab, int64_t tp) { return round_up(vocab, 128 * tp); }

Layout layout_of(const Recipe& r, int64_t world) {
  const auto& d = r.distributed;
  Layout l;
  l.tp = d.tp_size, l.pp = d.pp_size, l.cp = d.cp_size, l.ep = d.ep_size;
  const int64_t model_ranks = l.tp * l.pp * l.cp;
  const int64_t dp = min_dp(r);
  l.world = world > 0                      ? std::min(world, kMaxWorld)
            : model_ranks < kMaxWorld / dp ? model_ranks * dp
                                           : kMaxWorld;
  l.dp = std::max<int64_t>(1, l.world / model_ranks);
  l.dp_replicate = std::min(l.dp, d.dp_replicate_size.value_or(1));
  l.dp_shard = std::max<int64_t>(1, l.dp / l.dp_replicate);
  l.expert_tp = expert_tp(r);
  l.ep_shard = std::max<int64_t>(1, l.dp_replicate * expert_ranks(r, l) / l.ep);
  l.stages_per_rank = stages_per_rank(r);
  l.stages = l.pp * l.stages_per_rank;
  l.micro_batch = l.pp > 1 ? d.pipeline.pp_microbatch_size.value_or(r.train.micro_batch_size)
                           : r.train.micro_batch_size;
  l.flushes = flushes_of(r, l.dp);
  l.micro_batches =
      std::max<int64_t>(1, r.train.global_batch_size / l.dp / l.flushes / l.micro_batch);
  l.layers_of_stage = split_layers(r, l.stages);
  l.predicts_apart = predicts_apart(r) && !l.layers_of_stage.empty();
  if (!l.layers_of_stage.empty())
    l.layers_of_stage[size_t(l.prediction_stage())] += r.model.mtp_layers();
  return l;
}

namespace {

// One stage of a layout string: the number of decoder layers, and how often E, L and m occur in it.
struct StageParts {
  int64_t layers = 0, embeddings = 0, losses = 0, predictions = 0;
};

class LayoutParser {
 public:
  LayoutParser(const std::string& text, std::string& reason) : text_(text), reason_(reason) {}

  bool parse(std::vector<StageParts>& stages) {
    stages.assign(1, {});
    if (!sequence(stages, 0)) return false;
    return at_ == text_.size() || fail("an unmatched `)`");
  }

 private:
  static constexpr size_t kMaxStages = 1 << 16;

  bool fail(const std::string& what) {
    reason_ = fmt::format("{} at character {}", what, at_ + 1);
    return false;
  }

  // Reads items up to the end or a closing parenthesis. A group holds one or more stages. Its first
  // stage continues the stage that is open.
  bool sequence(std::vector<StageParts>& stages, int depth) {
    while (at_ < text_.size() && text_[at_] != ')') {
      const char c = text_[at_];
      if (c == ',' || c == ' ') {
        ++at_;
        continue;
      }
      std::vector<StageParts> item(1);
      if (c == '|') {
        item.resize(2);
        ++at_;
      } else if (int64_t* part = part_of(item[0], c)) {
        *part = 1;
        ++at_;
      } else if (c == '(') {
        if (depth > 8) return fail("too many parentheses");
        ++at_;
        if (!sequence(item, depth + 1)) return false;
        if (at_ == text_.size()) return fail("a missing `)`");
        ++at_;
      } else {
        return fail(fmt::format("`{}`, where E, t, m, L, |, ( or * is expected,", c));
      }
      int64_t times = 1;
      if (!repetition(times)) return false;
      for (int64_t i = 0; i < times; ++i) {
        append(stages, item);
        if (stages.size() > kMaxStages) return fail("too many stages");
      }
    }
    return true;
  }

  static int64_t* part_of(StageParts& stage, char letter) {
    switch (letter) {
      case 'E': return &stage.embeddings;
      case 't': return &stage.layers;
      case 'm': return &stage.predictions;
      case 'L': return &stage.losses;
      default: return nullptr;
    }
  }

  bool repetition(int64_t& times) {
    if (at_ == text_.size() || text_[at_] != '*') return true;
    const char* begin = text_.data() + at_ + 1;
    const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), times);
    if (error != std::errc() || times < 1 || times > 100000)
      return fail("`*` without a number after it");
    at_ = size_t(stop - text_.data());
    return true;
  }

  static void append(std::vector<StageParts>& stages, const std::vector<StageParts>& item) {
    stages.back().layers += item[0].layers;
    stages.back().embeddings += item[0].embeddings;
    stages.back().losses += item[0].losses;
    stages.back().predictions += item[0].predictions;
    stages.insert(stages.end(), item.begin() + 1, item.end());
  }

  const std::string& text_;
  std::string& reason_;
  size_t at_ = 0;
};

// Checks the letters m of a layout that has some before the last stage.
const char* check_predictions_apart(const std::vector<StageParts>& stages, int64_t predictions) {
  const size_t before_last = stages.size() - 2;
  if (stages.size() < 2 || stages[before_last].predictions != predictions)
    return "every m (multi-token prediction) must stand in one stage: the last one, with L, or the "
           "one before it";
  if (before_last == 0) return "m (multi-token prediction) must not stand in the first stage";
  if (stages.back().layers > 0) return "m (multi-token prediction) must stand after every t";
  return "";
}

}  // namespace

bool parse_pipeline_layout(const std::string& text, PipelineLayout& layout, std::string& reason) {
  std::vector<StageParts> stages;
  if (!LayoutParser(text, reason).parse(stages)) return false;
  int64_t embeddings = 0, losses = 0;
  layout = {};
  for (const auto& s : stages) {
    embeddings += s.embeddings, losses += s.losses, layout.predictions += s.predictions;
    layout.layers_of_stage.push_back(s.layers);
  }
  if (embeddings != 1 || stages.front().embeddings != 1)
    reason = "E (the embedding) must stand once, in the first stage";
  else if (losses != 1 || stages.back().losses != 1)
    reason = "L (the loss) must stand once, in the last stage";
  else if (layout.predictions > stages.back().predictions)
    reason = check_predictions_apart(stages, layout.predictions);
  layout.predicts_apart = reason.empty() && layout.predictions > stages.back().predictions;
  return reason.empty();
}

}  // namespace mtrain::plan
