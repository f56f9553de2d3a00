#include "base/rng.h"

#include <cmath>
#include <numbers>

#include "base/hash.h"

namespace mtrain {

uint64_t rng_key(uint64_t seed, std::string_view name) {
  uint64_t h = Fnv1a(seed).add(name).value();
  // splitmix64's finisher
  h += seed * 0x9E3779B97F4A7C15ull;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return h ^ (h >> 31);
}

namespace {
// Returns four normal numbers from one Philox block, by Box-Muller.
std::array<float, 4> normals(uint64_t key, uint64_t counter) {
  const auto x = Philox::block(key, counter);
  std::array<float, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    const double u = (x[2 * pair] + 1.0) * 0x1p-32, v = x[2 * pair + 1] * 0x1p-32;  // u in (0, 1]
    const double r = std::sqrt(-2.0 * std::log(u)), angle = 2.0 * std::numbers::pi * v;
    out[2 * pair] = float(r * std::cos(angle));
    out[2 * pair + 1] = float(r * std::sin(angle));
  }
  return out;
}
}  // namespace

void fill_normal(uint64_t key, int64_t first, int64_t count, float std, float* out) {
  for (int64_t i = first; i < first + count;) {
    const auto four = normals(key, uint64_t(i) / 4);
    for (int64_t lane = i % 4; lane < 4 && i < first + count; ++lane, ++i)
      out[i - first] = std * four[lane];
  }
}

uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t n) {
  const auto x = Philox::block(key, index);
  const uint64_t r = uint64_t(x[0]) << 32 | x[1];
  return uint64_t((unsigned __int128)r * n >> 64);
}

}  // namespace mtrain
