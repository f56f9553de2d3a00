#include "observe/launch_letters.h"

#include <algorithm>
#include <array>

namespace mtrain::observe {

namespace {

struct Meaning {
  char letter;
  std::string_view text;
};

constexpr std::array kMeanings{Meaning{'m', "matmul"},
                               Meaning{'a', "attention"},
                               Meaning{'n', "norm"},
                               Meaning{'r', "rope"},
                               Meaning{'s', "activation"},
                               Meaning{'e', "experts"},
                               Meaning{'t', "routing"},
                               Meaning{'p', "permute"},
                               Meaning{'i', "embedding"},
                               Meaning{'l', "loss"},
                               Meaning{'o', "optimizer"},
                               Meaning{'q', "quantize"},
                               Meaning{'c', "copies and sums"},
                               Meaning{'u', "upload"},
                               Meaning{'d', "download"},
                               Meaning{'g', "graph"},
                               Meaning{'A', "all_reduce"},
                               Meaning{'G', "all_gather"},
                               Meaning{'R', "reduce_scatter"},
                               Meaning{'X', "all_to_all"},
                               Meaning{'K', "ring_exchange"},
                               Meaning{'S', "send"},
                               Meaning{'V', "receive"},
                               Meaning{'P', "broadcast or barrier"},
                               Meaning{kWaits, "waits"},
                               Meaning{'z', "other"}};

struct Kind {
  std::string_view begin;  // of a launch's name
  char letter;
};

// The first matching row counts.
constexpr std::array kKinds{Kind{"matmul", 'm'},
                            Kind{"attention", 'a'},
                            Kind{"latent_", 'a'},
                            Kind{"norm", 'n'},
                            Kind{"head_norm", 'n'},
                            Kind{"rope", 'r'},
                            Kind{"swiglu", 's'},
                            Kind{"geglu", 's'},
                            Kind{"gelu", 's'},
                            Kind{"weighted_", 's'},
                            Kind{"experts", 'e'},
                            Kind{"expert_rows", 'e'},
                            Kind{"route", 't'},
                            Kind{"rank_choices", 't'},
                            Kind{"drop_choices", 't'},
                            Kind{"update_router", 't'},
                            Kind{"permute", 'p'},
                            Kind{"unpermute", 'p'},
                            Kind{"embedding", 'i'},
                            Kind{"cross_entropy", 'l'},
                            Kind{"soft_cap", 'l'},
                            Kind{"adamw", 'o'},
                            Kind{"muon", 'o'},
                            Kind{"sum_squares", 'o'},
                            Kind{"clip_scale", 'o'},
                            Kind{"first_non_finite", 'o'},
                            Kind{"quantize", 'q'},
                            Kind{"transpose_float8", 'q'},
                            Kind{"transpose_inverses", 'q'},
                            Kind{"inverses_of_amax", 'q'},
                            Kind{"amax", 'q'},
                            Kind{"scale_from_amax", 'q'},
                            Kind{"update_scales", 'q'},
                            Kind{"add", 'c'},
                            Kind{"cast", 'c'},
                            Kind{"column_sum", 'c'},
                            Kind{"copy", 'c'},
                            Kind{"dropout", 'c'},
                            Kind{"fill", 'c'},
                            Kind{"scale", 'c'},
                            Kind{"sum", 'c'},
                            Kind{"upload", 'u'},
                            Kind{"download", 'd'},
                            Kind{"graph", 'g'},
                            Kind{"all_reduce", 'A'},
                            Kind{"all_gather", 'G'},
                            Kind{"reduce_scatter", 'R'},
                            Kind{"all_to_all", 'X'},
                            Kind{"ring_exchange", 'K'},
                            Kind{"send", 'S'},
                            Kind{"receive", 'V'},
                            Kind{"broadcast", 'P'},
                            Kind{"barrier", 'P'}};

}  // namespace

char letter_of(std::string_view launch) {
  const auto kind =
      std::ranges::find_if(kKinds, [&](const Kind& k) { return launch.starts_with(k.begin); });
  return kind == kKinds.end() ? 'z' : kind->letter;
}

std::string_view meaning_of_letter(char letter) {
  const auto meaning = std::ranges::find(kMeanings, letter, &Meaning::letter);
  return meaning == kMeanings.end() ? "?" : meaning->text;
}

}  // namespace mtrain::observe
