// The kinds of device that a rank can compute on.
#pragma once

namespace mtrain {

enum class DeviceKind { cpu, cuda };

}  // namespace mtrain
