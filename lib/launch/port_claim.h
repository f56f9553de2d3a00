// A launcher's claim to a port of this host.
#pragma once
#include <cstdint>

namespace mtrain::launch {

// While it lives, no other launcher of this host can start the same node of a job at this port: its
// ranks would connect to those of the running job.
class PortClaim {
 public:
  // Port 0 claims a free port. Throws UserError if another launcher has the port.
  PortClaim(uint16_t port, int node);
  ~PortClaim();
  PortClaim(const PortClaim&) = delete;
  PortClaim& operator=(const PortClaim&) = delete;

  uint16_t port() const { return port_; }

 private:
  uint16_t port_;
  int fd_;
};

}  // namespace mtrain::launch
