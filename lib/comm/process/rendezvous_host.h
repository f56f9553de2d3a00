// At which of a host's addresses rank 0 serves the store, and how the ranks reach it.
#pragma once
#include <string>

namespace mtrain::comm {

struct RendezvousHost {
  std::string listens;  // at this address of rank 0's host; "": at all of them
  std::string reached;  // name or address
};

// `one_host` says that all ranks run on this host. They then meet at its loopback address, which no
// other host can reach, unless `master_addr` is a name or an address of another host. Otherwise
// rank 0 listens at the one address that `master_addr` stands for. It listens at all addresses
// where that cannot be known: the name stands for several, or for a loopback address that other
// hosts do not share, or for an address in front of this host.
RendezvousHost rendezvous_host(const std::string& master_addr, bool one_host);

}  // namespace mtrain::comm
