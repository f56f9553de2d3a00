// The address of its host at which rank 0 serves the store, and the address that ranks connect to.
#pragma once
#include <string>

namespace mtrain::store {

struct RendezvousHost {
  std::string listens;  // at this address of rank 0's host; "": at all of them
  std::string reached;  // name or address
};

// `one_host`: all ranks run on this host. They then meet at its loopback address, which no other
// host can reach, unless `master_addr` is a name or an address of another host. Otherwise rank 0
// listens at the one address of this host that `master_addr` stands for. It listens at all
// addresses if that one is not known. The name may stand for several addresses, for a loopback
// address that other hosts do not share, or for an address that is not this host's own (NAT).
RendezvousHost rendezvous_host(const std::string& master_addr, bool one_host);

}  // namespace mtrain::store
