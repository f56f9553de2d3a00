// A reference for attention: its definition, computed in float64.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace mtrain::test {

struct AttentionCase {
  const char* name;
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t q_start = 0, window = 0;
  std::vector<int32_t> cu_seqlens = {};
  double cap = 0;    // scores s become cap tanh(s / cap); 0: they stay
  double scale = 0;  // for scores; 0: 1 / sqrt(D)
  int64_t Dv = 0;    // head dim of v and out; 0: D
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  float scale_of() const { return scale > 0 ? float(scale) : 1 / std::sqrt(float(D)); }
};

inline bool sees(const AttentionCase& c, int64_t i, int64_t j) {
  if (c.causal && j > i + c.q_start) return false;
  if (c.window > 0 && j <= i + c.q_start - c.window) return false;
  for (size_t d = 0; d + 1 < c.cu_seqlens.size(); ++d) {
    const bool has_i = i >= c.cu_seqlens[d] && i < c.cu_seqlens[d + 1];
    const bool has_j = j >= c.cu_seqlens[d] && j < c.cu_seqlens[d + 1];
    if (has_i != has_j) return false;
  }
  return true;
}

// The textbook form in float64, on (token, head, D) arrays without padding.
struct AttentionReference {
  std::vector<double> out, lse, dq, dk, dv;

  AttentionReference(const AttentionCase& c, const std::vector<double>& q,
                     const std::vector<double>& k, const std::vector<double>& v,
                     const std::vector<double>& dout)
      : out(dout.size()),
        lse(size_t(c.B * c.A * c.Sq), -std::numeric_limits<double>::infinity()),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()) {
    const double scale = c.scale_of();
    const int64_t D = c.D, Dv = c.value_dim();
    std::vector<double> p(size_t(c.Skv)), dp(size_t(c.Skv)), slope(size_t(c.Skv));
    for (int64_t b = 0; b < c.B; ++b)
      for (int64_t a = 0; a < c.A; ++a)
        for (int64_t i = 0; i < c.Sq; ++i) {
          const int64_t g = a / (c.A / c.G), row = (i * c.B + b) * c.A + a, at_q = row * D,
                        at_out = row * Dv;
          const auto at_k = [&](int64_t j) { return ((j * c.B + b) * c.G + g) * D; };
          const auto at_v = [&](int64_t j) { return ((j * c.B + b) * c.G + g) * Dv; };
          double top = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
          for (int64_t j = 0; j < c.Skv; ++j) {
            p[j] = 0;
            if (!sees(c, i, j)) continue;
            for (int64_t d = 0; d < D; ++d) p[j] += scale * q[at_q + d] * k[at_k(j) + d];
            slope[j] = c.cap > 0 ? std::pow(std::cosh(p[j] / c.cap), -2) : 1;
            if (c.cap > 0) p[j] = c.cap * std::tanh(p[j] / c.cap);
            top = std::max(top, p[j]);
          }
          for (int64_t j = 0; j < c.Skv; ++j)
            if (sees(c, i, j)) sum += p[j] = std::exp(p[j] - top);
          if (sum == 0) continue;
          lse[(b * c.A + a) * c.Sq + i] = top + std::log(sum);
          for (int64_t j = 0; j < c.Skv; ++j) {
            p[j] /= sum;
            dp[j] = 0;
            for (int64_t d = 0; d < Dv; ++d) {
              out[at_out + d] += p[j] * v[at_v(j) + d];
              dp[j] += dout[at_out + d] * v[at_v(j) + d];
            }
            delta += p[j] * dp[j];
          }
          for (int64_t j = 0; j < c.Skv; ++j) {
            for (int64_t d = 0; d < D; ++d) {
              const double ds = scale * slope[j] * p[j] * (dp[j] - delta);
              dq[at_q + d] += ds * k[at_k(j) + d];
              dk[at_k(j) + d] += ds * q[at_q + d];
            }
            for (int64_t d = 0; d < Dv; ++d) dv[at_v(j) + d] += p[j] * dout[at_out + d];
          }
        }
  }
};

}  // namespace mtrain::test
