#include "kernels/cuda/grouped/grouped_choice.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/cutlass/grouped_gemm.h"
#include "kernels/cuda/grouped/grouped_engine.h"

namespace mtrain::kernels::cuda {
namespace {

// CUTLASS must take less than this fraction of the own kernel's time: two measurements of one
// kernel differ by as much.
constexpr double kMustTake = 0.98;
constexpr const char* kWord = "grouped";

bool at_16_bytes(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

bool types_fit(DType a, DType b, int64_t first_length, int64_t second_length) {
  if (is_float8(a)) return b == DType::f8e4m3 && first_length % 16 == 0 && second_length % 16 == 0;
  return a == DType::bf16 && b == DType::bf16 && first_length % 8 == 0 && second_length % 8 == 0;
}

template <class Key, class Field>
void each_grouped_field(Key& k, const Field& field) {
  field(k.weights), field(k.trans_b), field(k.accumulate), field(k.N), field(k.K), field(k.E);
  field(k.a), field(k.b), field(k.c);
}

// A line of unchosen GEMMs, or of choices.
struct Line {
  std::string version;
  GroupedKey key{};
  int64_t rows = 0;
  std::string engine;  // empty in lines of unchosen GEMMs
};

Line parse_line(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  Line line;
  in >> word >> line.version;
  each_grouped_field(line.key, [&]<class T>(T& value) {
    int64_t number = 0;
    in >> number;
    value = T(number);
  });
  in >> line.rows;
  const GroupedKey& k = line.key;
  if (!in || word != kWord || line.rows < 1 || k.N < 1 || k.K < 1 || k.E < 1)
    throw RunError("a line that names no grouped GEMM: " + text);
  in >> line.engine;
  if (!line.engine.empty() && line.engine != "own" && line.engine != "cutlass")
    throw RunError("a line that names no engine of a grouped GEMM: " + text);
  return line;
}

std::vector<Line> parse_lines(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one);) lines.push_back(parse_line(one));
  return lines;
}

}  // namespace

GemmLines split_gemm_lines(const std::string& text) {
  GemmLines split;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one);)
    (one.starts_with(std::string(kWord) + " ") ? split.grouped : split.others) += one + "\n";
  return split;
}

std::string cutlass_description() {
  return why_no_cutlass().empty() ? "CUTLASS " + cutlass_version() : "no CUTLASS";
}

GroupedKey key_of(const GroupedCall& call) {
  if (const auto* m = std::get_if<GroupedMatmul>(&call))
    return {.weights = false,
            .trans_b = m->trans_b,
            .accumulate = false,
            .N = m->N,
            .K = m->K,
            .E = m->E,
            .a = m->a_RK.dtype,
            .b = m->b_EKN.dtype,
            .c = m->c_RN.dtype};
  const auto& w = std::get<GroupedWeightGrad>(call);
  return {.weights = true,
          .trans_b = false,
          .accumulate = w.accumulate,
          .N = w.N,
          .K = w.M,
          .E = w.E,
          .a = w.a_RM.dtype,
          .b = w.b_RN.dtype,
          .c = w.c_EMN.dtype};
}

int64_t rows_of(const GroupedCall& call) {
  return std::visit([](const auto& m) { return m.R; }, call);
}

std::string describe(const GroupedKey& k) {
  const std::string types = k.a == k.b ? std::string(dtype_name(k.a))
                                       : fmt::format("{} and {}", dtype_name(k.a), dtype_name(k.b));
  if (k.weights)
    return fmt::format("the weight gradients {} x {} of {} experts in {}{}", k.K, k.N, k.E, types,
                       k.accumulate ? ", added" : "");
  return fmt::format("the GEMMs of {} experts, N {} K {}{}, in {}", k.E, k.N, k.K,
                     k.trans_b ? "" : " of the input", types);
}

bool fits_cutlass(const GroupedCall& call) {
  if (const auto* m = std::get_if<GroupedMatmul>(&call))
    return m->R > 0 && m->E > 0 && m->K > 0 && m->c_RN.dtype == DType::bf16 &&
           types_fit(m->a_RK.dtype, m->b_EKN.dtype, m->K, m->N) &&
           at_16_bytes({m->a_RK.data, m->b_EKN.data, m->c_RN.data});
  const auto& w = std::get<GroupedWeightGrad>(call);
  return w.R > 0 && w.E > 0 && types_fit(w.a_RM.dtype, w.b_RN.dtype, w.M, w.N) &&
         at_16_bytes({w.a_RM.data, w.b_RN.data, w.c_EMN.data});
}

// Both engines sum in fp32, in different orders. An addition rounds by up to 2^-24 of the running
// sum, which is about as large as the numbers of its row; 4096 additions of tensor cores, for 65536
// rows of one expert, may err by 2^-12 of them. Hopper adds 8-bit products with 13 bits after the
// point of the largest one, 128 at a time; each part may be 2^-13 of its row's numbers off. bf16
// results may differ in their last bit, 2^-8 of a number. What is wrong differs by more: a sum that
// lacks one of n products by 1 / sqrt(n) of its row's numbers, a misplaced tile by all of them.
GroupedTolerance tolerance_of(const GroupedKey& k) {
  GroupedTolerance t{.relative = 0x1p-14f, .of_row = 0x1p-10f};
  if (is_float8(k.a)) t = {.relative = 0x1p-8f, .of_row = 0x1p-6f};
  if (k.c == DType::bf16) t.relative += 0x1p-7f;
  return t;
}

void GroupedChoices::refuse(const GroupedKey& key, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    kinds_[key].state = Kind::State::refused;
  }
  log::warn(fmt::format("{}: {}; mtrain's own kernel computes them", describe(key), why));
}

// Computes the call with both engines.
bool GroupedChoices::check(const GroupedCall& call, const GroupedKey& key, bool chosen,
                           CUstream_st* stream) {
  const auto found = device_.compare(call, chosen, stream);
  if (!found.refusal.empty()) {
    refuse(key, "CUTLASS cannot compute them: " + found.refusal);
    return false;
  }
  if (!(found.worst <= 1)) {
    refuse(key, fmt::format("CUTLASS's result differs from that of mtrain's kernel by {:.3g} times "
                            "what rounding allows",
                            found.worst));
    return true;
  }
  if (found.compared) {
    const std::lock_guard lock(mutex_);
    kinds_[key].state = Kind::State::equal;
  }
  return true;
}

bool GroupedChoices::run(const GroupedCall& call, CUstream_st* stream) {
  if (!fits_cutlass(call) || !device_.why_no_cutlass().empty()) return false;
  const GroupedKey key = key_of(call);
  Kind kind;
  {
    const std::lock_guard lock(mutex_);
    Kind& known = kinds_[key];
    known.most_rows = std::max(known.most_rows, rows_of(call));
    ++known.runs;
    kind = known;
  }
  const bool chosen = kind.engine == Kind::Engine::cutlass;
  if (kind.state == Kind::State::refused || kind.engine == Kind::Engine::own) return false;
  // A capture runs nothing, so there is nothing to compare.
  if (kind.state == Kind::State::unchecked)
    return !device_.capturing(stream) && check(call, key, chosen, stream);
  if (!chosen) return false;
  const std::string refusal = device_.run_cutlass(call, stream);
  if (refusal.empty()) return true;
  refuse(key, "CUTLASS cannot compute them: " + refusal);
  return false;
}

// The rows of timed GEMMs are a power of two, so that ranks with about equal rows write one line.
std::string GroupedChoices::line(const GroupedKey& key, int64_t rows) const {
  std::string text = fmt::format("{} {} ", kWord, device_.version());
  each_grouped_field(key, [&](const auto& value) { text += fmt::format("{} ", int64_t(value)); });
  return text + fmt::format("{}", std::bit_ceil(uint64_t(rows)));
}

std::string GroupedChoices::unchosen() const {
  std::vector<std::pair<double, std::string>> costly;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [k, kind] : kinds_)
      if (kind.engine == Kind::Engine::undecided && kind.state == Kind::State::equal)
        costly.push_back({double(kind.runs) * double(kind.most_rows) * double(k.N) * double(k.K),
                          line(k, kind.most_rows)});
  }
  std::sort(costly.begin(), costly.end(), std::greater<>());
  std::string text;
  for (const auto& [flops, one] : costly) text += one + "\n";
  return text;
}

std::string GroupedChoices::time(const std::string& lines, double seconds, CUstream_st* stream) {
  if (!device_.why_no_cutlass().empty()) return "";
  std::string found;
  const double end = device_.now() + seconds;
  for (const Line& one : parse_lines(lines)) {
    if (device_.now() >= end) {
      log::info(
          "no time was left to measure all grouped GEMMs: the others use mtrain's own kernel");
      break;
    }
    try {
      const auto times = device_.time(one.key, one.rows, stream);
      const bool faster = times.cutlass < kMustTake * times.own;
      log::info(fmt::format("{}: {:.3f} ms by mtrain's kernel, {:.3f} ms by CUTLASS",
                            describe(one.key), times.own * 1e3, times.cutlass * 1e3));
      const std::string choice = line(one.key, one.rows) + (faster ? " cutlass\n" : " own\n");
      use(choice);
      found += choice;
    } catch (const RunError& e) {
      log::info(fmt::format("{} are not measured: {}", describe(one.key), e.message()));
    }
  }
  return found;
}

void GroupedChoices::use(const std::string& lines) {
  std::optional<std::string> other;
  for (const Line& one : parse_lines(lines)) {
    if (one.engine.empty()) throw RunError("a grouped GEMM without an engine");
    if (one.version != device_.version()) {
      other = one.version;
      continue;
    }
    const std::lock_guard lock(mutex_);
    kinds_[one.key].engine = one.engine == "cutlass" ? Kind::Engine::cutlass : Kind::Engine::own;
    kinds_[one.key].most_rows = std::max(kinds_[one.key].most_rows, one.rows);
  }
  if (other)
    log::info(
        fmt::format("grouped GEMMs were measured with CUTLASS {}, and this build has {}: they "
                    "are measured again",
                    *other, device_.version()));
}

std::string GroupedChoices::choices() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [key, kind] : kinds_)
    if (kind.engine != Kind::Engine::undecided)
      text += line(key, std::max<int64_t>(kind.most_rows, 1)) +
              (kind.engine == Kind::Engine::cutlass ? " cutlass\n" : " own\n");
  return text;
}

}  // namespace mtrain::kernels::cuda
