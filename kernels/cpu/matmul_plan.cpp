#include "kernels/cpu/matmul_plan.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "base/strings.h"
#include "base/thread_pool.h"
#include "kernels/cpu/scratch.h"
#include "kernels/elementwise.h"

namespace mtrain::kernels::cpu {

const char* way_name(MatmulWay way) {
  switch (way) {
    case MatmulWay::own: return "own";
    case MatmulWay::openblas: return "openblas";
    case MatmulWay::onednn: return "onednn";
    case MatmulWay::onednn_bf16: return "onednn_bf16";
    case MatmulWay::own_bf16: return "own_bf16";
    case MatmulWay::own_amx: return "own_amx";
  }
  return "?";
}

namespace matmul_plan {
namespace {

struct Key {
  int64_t M, N, K;
  int threads;
  bool trans_a, trans_b, accumulate, bias;
  DType a, b, c;
  auto tie() const {
    return std::tie(M, N, K, threads, trans_a, trans_b, accumulate, bias, a, b, c);
  }
  bool operator<(const Key& o) const { return tie() < o.tie(); }
};

Key key_of(const Matmul& m) {
  return {m.M,       m.N,       m.K,          current_threads(),
          m.trans_a, m.trans_b, m.accumulate, bool(m.bias_N),
          m.a.dtype, m.b.dtype, m.c_MN.dtype};
}

struct Choice {
  MatmulWay way;
  bool loaded = false;  // by another process, perhaps of another machine; false once it was used
};

struct Table {
  std::mutex mutex;  // held during a measurement too: two at once would disturb each other
  std::map<Key, Choice> ways;
  bool warned = false;  // that a loaded way cannot be had here
  std::atomic<bool> static_rule{false};
};
Table& table() {
  static Table t;
  return t;
}

// Large products are judged by a smaller one with the same operands' layout.
constexpr int64_t kMostFlops = 200'000'000;

Matmul smaller(Matmul m) {
  const auto too_big = [&] { return 2.0 * double(m.M) * double(m.N) * double(m.K) > kMostFlops; };
  while (too_big()) {
    int64_t& longest = m.M >= m.N && m.M >= m.K ? m.M : m.N >= m.K ? m.N : m.K;
    if (longest <= 256) break;
    longest = std::max<int64_t>(256, longest / 2);
  }
  return m;
}

double seconds_of(const Matmul& m, MatmulWay way) {
  const auto start = std::chrono::steady_clock::now();
  run(m, way);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MatmulWay measure(const Matmul& asked) {
  const std::vector<MatmulWay> ways = ways_of(asked);
  if (ways.size() == 1) return ways[0];
  // The fastest of all wherever it was measured, and its bits depend on nothing but K.
  if (std::ranges::count(ways, MatmulWay::own_amx)) return MatmulWay::own_amx;
  Matmul m = smaller(asked);
  Scratch memory;
  const int64_t a = m.M * m.K, b = m.K * m.N, c = m.M * m.N;
  const auto bytes = [](int64_t count, DType dtype) {
    return round_up(count * dtype_size(dtype), 64);
  };
  const int64_t total = bytes(a, m.a.dtype) + bytes(b, m.b.dtype) + bytes(c, m.c_MN.dtype) +
                        bytes(m.N, m.bias_N.dtype);
  char* next = static_cast<char*>(memory.bytes(size_t(total)));
  const auto take = [&](int64_t count, DType dtype) {
    const Span s{next, count, dtype};
    next += bytes(count, dtype);
    run(Fill{.y = s, .value = 0.01f});
    return s;
  };
  m.a = take(a, m.a.dtype);
  m.b = take(b, m.b.dtype);
  m.c_MN = take(c, m.c_MN.dtype);
  if (m.bias_N) m.bias_N = take(m.N, m.bias_N.dtype);

  // Rounds go over all ways in turn, so that a disturbance hits them alike; the best of each
  // counts. The first round warms up.
  constexpr int kRounds = 6;
  std::vector<double> best(ways.size(), 1e30);
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i) {
      const double seconds = seconds_of(m, ways[i]);
      if (round > 0) best[i] = std::min(best[i], seconds);
    }
  const size_t fastest = size_t(std::min_element(best.begin(), best.end()) - best.begin());
  for (size_t i = 0; i < ways.size(); ++i)
    if ((ways[i] == MatmulWay::own || ways[i] == MatmulWay::own_bf16) &&
        best[i] <= best[fastest] * kWorthSwitching)
      return ways[i];
  return ways[fastest];
}

char letter(bool yes, char c) { return yes ? c : '-'; }

std::string line_of(const Key& k, MatmulWay way) {
  return fmt::format("{} {} {} {} {}{}{}{} {} {} {} {}\n", k.M, k.N, k.K, k.threads,
                     letter(k.trans_a, 'A'), letter(k.trans_b, 'B'), letter(k.accumulate, '+'),
                     letter(k.bias, 'b'), dtype_name(k.a), dtype_name(k.b), dtype_name(k.c),
                     way_name(way));
}

template <class T>
bool parse(const std::string& word, T& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}
bool parse(const std::string& word, DType& value) {
  for (DType d : {DType::f32, DType::bf16})
    if (word == dtype_name(d)) return value = d, true;
  return false;
}
bool parse(const std::string& word, MatmulWay& value) {
  for (MatmulWay w : {MatmulWay::own, MatmulWay::openblas, MatmulWay::onednn,
                      MatmulWay::onednn_bf16, MatmulWay::own_bf16, MatmulWay::own_amx})
    if (word == way_name(w)) return value = w, true;
  return false;
}

std::optional<std::pair<Key, MatmulWay>> parse_line(std::string_view line) {
  const std::vector<std::string> w = split(line, ' ');
  Key k{};
  MatmulWay way{};
  if (w.size() != 9 || w[4].size() != 4 || !parse(w[0], k.M) || !parse(w[1], k.N) ||
      !parse(w[2], k.K) || !parse(w[3], k.threads) || !parse(w[5], k.a) || !parse(w[6], k.b) ||
      !parse(w[7], k.c) || !parse(w[8], way))
    return std::nullopt;
  k.trans_a = w[4][0] == 'A';
  k.trans_b = w[4][1] == 'B';
  k.accumulate = w[4][2] == '+';
  k.bias = w[4][3] == 'b';
  if (trim(line_of(k, way)) != line) return std::nullopt;
  return std::pair(k, way);
}

}  // namespace

MatmulWay choose(const Matmul& m) {
  Table& t = table();
  if (t.static_rule.load(std::memory_order_relaxed)) return MatmulWay::own;
  const Key key = key_of(m);
  std::lock_guard lock(t.mutex);
  const auto found = t.ways.find(key);
  if (found != t.ways.end()) {
    Choice& known = found->second;
    if (!known.loaded || std::ranges::count(ways_of(m), known.way)) {
      known.loaded = false;
      return known.way;
    }
    if (!std::exchange(t.warned, true))
      log::warn(
          fmt::format("matmul plan: this machine does not have `{}`, which the plan takes for "
                      "some shapes; they are measured anew, and the resumed run may differ "
                      "in the last bits from one that went on",
                      way_name(known.way)));
  }
  const MatmulWay way = measure(m);
  t.ways[key] = {way};
  return way;
}

void use_static_rule(bool on) { table().static_rule = on; }

std::string save() {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  std::string text;
  for (const auto& [key, choice] : t.ways) text += line_of(key, choice.way);
  return text;
}

void load(std::string_view text) {
  std::map<Key, MatmulWay> loaded;
  for (const std::string& line : split(text, '\n')) {
    if (trim(line).empty()) continue;
    const auto entry = parse_line(trim(line));
    if (!entry)
      throw UserError(
          fmt::format("matmul plan: cannot read the line '{}'", line),
          "the plan was damaged or written by another version; remove it to measure anew");
    loaded[entry->first] = entry->second;
  }
  Table& t = table();
  std::lock_guard lock(t.mutex);
  for (const auto& [key, way] : loaded) t.ways[key] = {way, true};
  t.warned = false;
}

void clear() {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  t.ways.clear();
}

}  // namespace matmul_plan
}  // namespace mtrain::kernels::cpu
