// Ranks as processes of one or several hosts, over TCP.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "store/store.h"

namespace mtrain::comm {

struct GlooOptions {
  store::StoreAddress store;
  int rank = 0, size = 1;
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
};

// Every rank of the world calls it. The program must hold an IgnoreSigpipe as long as the transport
// lives, since gloo writes to sockets and a peer that is gone must not end this process.
std::shared_ptr<Transport> gloo_transport(const GlooOptions& options);

// The numeric addresses of both ends of a rank's connection to the store.
struct StorePath {
  std::string own, server;
};
// Returns the address at which the peers reach rank `rank`. A rank on the server's own host may
// have connected from a loopback address; it then takes the address that other hosts use for the
// server.
std::string gloo_address(const std::vector<StorePath>& paths, int rank);

}  // namespace mtrain::comm
