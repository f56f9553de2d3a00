// Connects one rank of any world to groups whose other ranks do not exist. Only a recording device
// can use them (device/device.h): its communication is recorded and never runs.
#pragma once
#include <memory>

#include "comm/world.h"

namespace mtrain::comm {

std::shared_ptr<Transport> recording_transport();

}  // namespace mtrain::comm
