// The values of torchrun's options, as text.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/etcd_options.h"

namespace mtrain::launch {

// All functions throw UserError, which names the option, for a malformed text and for a request
// that mtrain-launch does not support.

struct Endpoint {
  std::string host;
  std::optional<uint16_t> port;
};
// --rdzv_endpoint: host, host:port, [address]:port, or an address of IPv6 in brackets.
Endpoint parse_endpoint(const std::string& text);

// A host, or an address of IPv6, which torchrun's users write in brackets. `source` is the origin
// of the text: --master_addr, --local_addr, or the variable MASTER_ADDR.
std::string parse_host(const std::string& source, const std::string& text);

// --nnodes: N, or MIN:MAX.
struct NodeRange {
  int least = 1, most = 1;
};
NodeRange parse_nodes(const std::string& text);

// --redirects and --tee: which streams of which ranks of this host. Bits: 1 stdout, 2 stderr.
struct Streams {
  int all = 0;
  std::map<int, int> by_local_rank;  // for ranks that are named
  int of(int local_rank) const {
    const auto it = by_local_rank.find(local_rank);
    return it == by_local_rank.end() ? all : it->second;
  }
  bool any() const { return all || !by_local_rank.empty(); }
};
// "3" for all ranks, or "0:3,1:2" for the ranks named.
Streams parse_streams(const std::string& option, const std::string& text);

// --local-ranks-filter: "0,2". Empty: all ranks of the host.
std::set<int> parse_local_ranks(const std::string& text);

// --rdzv_conf: "key=value,...". The value of the key that has an effect, and for each other key of
// torchrun a line that explains why it has none.
struct RendezvousConfig {
  std::optional<int> node;  // rank=N numbers this host
  // How etcd is reached: protocol, cacert, cert, key, user, password_file.
  std::map<std::string, std::string> etcd = {};
  std::vector<std::string> warnings;
};
RendezvousConfig parse_rendezvous_config(const std::string& text);

// --rdzv_endpoint and --rdzv_conf of --rdzv_backend=etcd. The endpoint has one or more servers of a
// cluster: host:port,host:port or https://host:port. Reads the file of the password.
EtcdOptions parse_etcd(const std::string& endpoint, const RendezvousConfig& config);

}  // namespace mtrain::launch
