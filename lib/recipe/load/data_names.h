// Reads blends, windows and stages in the form of Megatron and AutoModel, different from mtrain's.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "recipe/load/node.h"
#include "recipe/load/targets.h"
#include "recipe/load/value.h"

namespace mtrain::recipe {

// A blend of data sets: path prefixes, and the share of each.
struct Blend {
  Node prefixes, shares;
};

// Reads [0.25, a, 0.75, b], or the same as one text. Returns nothing if the value has no shares.
// Describes a number that is not the share of a prefix in `wrong`. With `quoted`, as in Megatron's
// lists, a quoted number may be a share; in mtrain's own lists it is a prefix.
std::optional<Blend> read_blend(const Node& node, bool quoted, ValueError& wrong);

// Replaces Megatron's split of a data set, the text "99,1,0", by a list of its numbers.
void read_split(Node& node);

// Replaces Megatron's window (left, right), a list or a text, by the number of tokens that a token
// attends to, itself included. Returns false, and says why in `wrong`, if it cannot.
bool read_window_pair(Node& node, ValueError& wrong);

// Returns Megatron's layout string for AutoModel's lists of the modules of each stage.
std::string read_stages(const Node& stages, ValueError& wrong);

// Returns the settings that AutoModel's model.backend.te_fp8 stands for; none if it is off.
std::vector<FieldText> read_te_fp8(const Node& node, ValueError& wrong);

}  // namespace mtrain::recipe
