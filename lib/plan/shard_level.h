// A ShardLevel says which part of the parameters' state is sharded over data-parallel ranks.
#pragma once

namespace mtrain::plan {

// Each level includes those before it: ZeRO stages 0 to 3 (Rajbhandari et al. 2020).
enum class ShardLevel { nothing, optimizer, gradients, parameters };

}  // namespace mtrain::plan
