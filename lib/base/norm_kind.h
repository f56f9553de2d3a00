// The norms that a model may have. Its description, operations and kernels share this enum.
#pragma once

namespace mtrain {

enum class NormKind { rms, layer };

}  // namespace mtrain
