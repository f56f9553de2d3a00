// A part of a data set, as `datasets` writes it: train[:1000], train[10%:], validation.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mtrain::data {

struct Split {
  struct Bound {
    int64_t value = 0;  // negative: counted from the end
    bool percent = false;
  };
  std::string name;  // empty: all of a file, `train` of a data set
  std::optional<Bound> begin = {}, end = {};

  bool sliced() const { return begin || end; }
  // Returns the rows [first, last) of `rows`.
  std::pair<int64_t, int64_t> range(int64_t rows) const;
};

// Returns nothing if the text is not a split.
std::optional<Split> parse_split(std::string_view text);

}  // namespace mtrain::data
