#include "schedule/catalog.h"

#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::schedule {

namespace {

using Size = const ScheduleSize&;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxChunks = 1 << 21;  // bounds the memory that a mistyped size takes

int64_t all_chunks(Size s, int64_t) { return s.stages_per_rank * s.micro_batches; }
int64_t interleaved_chunks(Size s, int64_t rank) {
  return (s.stages_per_rank - 1) * group_of(s) + 2 * (s.pp - 1 - rank) + 1 +
         (s.moe_overlap ? 1 : 0);
}

int64_t interleaved_pairs(Size s, int64_t rank) {
  return all_chunks(s, rank) - interleaved_warm_up(s, rank);
}
// On the last rank the first forward of the steady state goes before a backward of its own
// micro-batch.
int64_t dualpipev_pairs(Size s, int64_t rank) {
  const int64_t after = s.pp - 1 - rank;
  return 2 * (s.micro_batches - 2 * s.pp + rank + 1) + after - (after == 0 ? 1 : 0);
}

// (P-1) / (V M) as published, for M >= P. With fewer micro-batches, the next stage of a micro-batch
// on this rank waits until the micro-batch has passed the other ranks.
double skewed_idle(Size s) {
  const int64_t V = s.stages_per_rank, M = s.micro_batches;
  return double(V * std::max<int64_t>(0, s.pp - M) + std::min(s.pp, M) - 1) / double(V * M);
}
// (P-1) / (3 V M) as published, for M >= P; fewer micro-batches idle longer.
double zero_bubble_idle(Size s) {
  return double(s.pp - 1) / double(3 * s.stages_per_rank * s.micro_batches);
}
// Ranks that are never idle between their first and their last action start and end one after
// another, which costs P-1 chunks. This needs M >= (3P - 1) / 2.
double v_idle(Size s) {
  const int64_t M = s.micro_batches;
  return double(std::max(s.pp - 1, 4 * s.pp - 2 * M - 2)) / double(6 * M);
}
// (P-1) (F&B + B - 3W), where F and B together take F + B.
double dualpipev_idle(Size s) { return double(s.pp - 1) / double(3 * s.micro_batches); }

void check_groups(const ScheduleKind& kind, Size s) {
  const int64_t M = s.micro_batches, P = s.pp;
  if (s.group == 0) {
    if (legal_rounds(M, P)) return;
    throw UserError(
        fmt::format(
            "{} runs its micro-batches in equal rounds of at least {} (the ranks); {} do not "
            "make {} equal rounds",
            kind.name, P, M, std::max<int64_t>(1, M / P)),
        fmt::format("use {} micro-batches, or give the size of a group",
                    nearest_legal(M, 4 * M + 64, [&](int64_t m) { return legal_rounds(m, P); })));
  }
  if (legal_group(s.group, M, P)) return;
  const std::string groups =
      nearest_legal(s.group, M, [&](int64_t n) { return legal_group(n, M, P); });
  throw UserError(
      fmt::format("a group of {} must lie between {} ranks and {} micro-batches, and the remainder "
                  "of {} over the groups must be 0 or at least {}",
                  s.group, P, M, M, P),
      groups.empty() ? fmt::format("use at least {} micro-batches", P)
                     : fmt::format("use a group of {}", groups));
}

}  // namespace

bool legal_rounds(int64_t micro_batches, int64_t pp) {
  return micro_batches % std::max<int64_t>(1, micro_batches / pp) == 0;
}

bool legal_group(int64_t group, int64_t micro_batches, int64_t pp) {
  if (group < pp || group > micro_batches) return false;
  return micro_batches % group == 0 || micro_batches % group >= pp;
}

std::string nearest_legal(int64_t from, int64_t most, const std::function<bool(int64_t)>& legal) {
  std::string text;
  for (int64_t low = std::min(from - 1, most); low >= 1 && text.empty(); --low)
    if (legal(low)) text = fmt::format("{}", low);
  for (int64_t high = from + 1; high <= most; ++high)
    if (legal(high)) return text + fmt::format("{}{}", text.empty() ? "" : " or ", high);
  return text;
}

const std::vector<ScheduleKind>& schedule_kinds() {
  static const std::vector<ScheduleKind> kinds{
      {.id = ScheduleId::one_f_one_b,
       .min_stages = 1,
       .max_stages = 1,
       .list = one_f_one_b,
       .chunks = [](Size s, int64_t rank) { return s.pp - rank + (s.moe_overlap ? 1 : 0); },
       .idle = skewed_idle},
      {.id = ScheduleId::gpipe,
       .min_stages = 1,
       .max_stages = 1,
       .list = gpipe,
       .chunks = all_chunks,
       .idle = skewed_idle},
      {.id = ScheduleId::interleaved_1f1b,
       .min_stages = 2,
       .max_stages = kAny,
       .in_groups = true,
       .list = interleaved_1f1b,
       .chunks = interleaved_chunks,
       .idle = skewed_idle,
       .pairs = interleaved_pairs},
      {.id = ScheduleId::looped_bfs,
       .min_stages = 2,
       .max_stages = kAny,
       .list = looped_bfs,
       .chunks = all_chunks,
       .idle = skewed_idle},
      {.id = ScheduleId::dfs,  // another name of interleaved_1f1b
       .min_stages = 2,
       .max_stages = kAny,
       .in_groups = true,
       .list = interleaved_1f1b,
       .chunks = interleaved_chunks,
       .idle = skewed_idle,
       .pairs = interleaved_pairs},
      {.id = ScheduleId::v_schedule,
       .min_stages = 2,
       .max_stages = 2,
       .v = true,
       .wgrads = WgradTiming::all_later,
       .list = v_schedule,
       .chunks = [](Size s, int64_t) { return 2 * s.pp; },
       .idle = v_idle},
      {.id = ScheduleId::zero_bubble,
       .min_stages = 1,
       .max_stages = kAny,
       .in_groups = true,
       .wgrads = WgradTiming::all_later,
       .list = zero_bubble,
       .chunks = [](Size s, int64_t) { return (s.stages_per_rank - 1) * group_of(s) + s.pp; },
       .idle = zero_bubble_idle},
      {.id = ScheduleId::dualpipev,
       .min_stages = 2,
       .max_stages = 2,
       .min_micro_batches = 2,
       .v = true,
       .wgrads = WgradTiming::some_later,
       .list = dualpipev,
       .chunks = [](Size s, int64_t) { return 2 * s.pp + 1; },
       .idle = dualpipev_idle,
       .pairs = dualpipev_pairs}};
  return kinds;
}

const ScheduleKind& schedule_kind(ScheduleId id) {
  const ScheduleKind& kind = schedule_kinds().at(size_t(id));
  MT_CHECK(kind.id == id, "the catalogue is not in the order of ScheduleId");
  return kind;
}

const ScheduleKind& schedule_named(std::string_view name) {
  std::vector<std::string> names;
  std::string listed;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (kind.name == name) return kind;
    names.emplace_back(kind.name);
    listed += (listed.empty() ? "" : ", ") + names.back();
  }
  const std::string close = nearest(name, names);
  throw UserError(fmt::format("there is no schedule {}", name),
                  close.empty() ? "use " + listed : fmt::format("did you mean {}?", close));
}

void check_size(const ScheduleKind& kind, const ScheduleSize& s) {
  const int64_t V = s.stages_per_rank;
  if (s.pp < 1 || V < 1 || s.micro_batches < 1 || s.group < 0)
    throw UserError(
        fmt::format("{} ranks, {} stages per rank, {} micro-batches, groups of {}: "
                    "each must be at least 1, but a group may be 0",
                    s.pp, V, s.micro_batches, s.group));
  for (const int64_t factor : {s.pp, V, s.micro_batches})
    if (factor > kMaxChunks || s.pp * V > kMaxChunks / s.micro_batches)
      throw UserError(fmt::format("{} ranks x {} stages x {} micro-batches are too many to list",
                                  s.pp, V, s.micro_batches),
                      fmt::format("their product must stay below {}", kMaxChunks));
  if (V < kind.min_stages || V > kind.max_stages)
    throw UserError(
        fmt::format("{} needs {} {} per rank, not {}", kind.name,
                    kind.max_stages == kAny ? fmt::format("at least {}", kind.min_stages)
                                            : fmt::format("exactly {}", kind.min_stages),
                    kind.min_stages == 1 ? "stage" : "stages", V),
        fmt::format("use {} per rank", kind.min_stages));
  if (kind.in_groups)
    check_groups(kind, s);
  else if (s.group > 0)
    throw UserError(fmt::format("{} does not order micro-batches in groups", kind.name),
                    "leave the group size out");
  if (const int64_t fewest = kind.min_micro_batches * s.pp; s.micro_batches < fewest)
    throw UserError(fmt::format("{} on {} ranks needs at least {} micro-batches, not {}", kind.name,
                                s.pp, fewest, s.micro_batches),
                    fmt::format("use {} micro-batches", fewest));
}

std::vector<int64_t> stages_of_rank(const ScheduleKind& kind, const ScheduleSize& size,
                                    int64_t rank) {
  if (kind.v) return {rank, 2 * size.pp - 1 - rank};
  std::vector<int64_t> stages;
  for (int64_t c = 0; c < size.stages_per_rank; ++c) stages.push_back(rank + c * size.pp);
  return stages;
}

int64_t chunks_in_flight(const ScheduleKind& kind, const ScheduleSize& size, int64_t rank) {
  return std::min(all_chunks(size, rank), kind.chunks(size, rank));
}

bool passes_pair(const ScheduleKind& kind, const ScheduleSize& size) {
  // The last rank has the shortest warm-up.
  return kind.pairs && kind.pairs(size, size.pp - 1) > 0;
}

double bubble_fraction(const ScheduleKind& kind, const ScheduleSize& size) {
  const double idle = kind.idle(size);
  return idle / (1 + idle);
}

Schedule make_schedule(const ScheduleKind& kind, const ScheduleSize& size) {
  check_size(kind, size);
  Schedule s{.name = std::string(kind.name),
             .pp = size.pp,
             .stages = size.pp * size.stages_per_rank,
             .micro_batches = size.micro_batches};
  s.rank_of_stage.resize(size_t(s.stages));
  for (int64_t rank = 0; rank < s.pp; ++rank) {
    for (const int64_t stage : stages_of_rank(kind, size, rank))
      s.rank_of_stage[size_t(stage)] = rank;
    s.ranks.push_back(kind.list(size, rank));
  }
  return s;
}

}  // namespace mtrain::schedule
