// How the launchers of a job reach etcd.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::launch {

struct EtcdOptions {
  struct Server {
    std::string host;
    uint16_t port = 0;
  };
  std::vector<Server> servers;  // of one cluster; the first that answers is used
  bool tls = false;
  std::string ca_file, cert_file, key_file;  // in PEM; "": the system's authorities, no certificate
  std::string user, password;                // "": etcd asks for none. Never print the password.
  std::string own_address;                   // of this host, for the others; "": found by etcd's
};

}  // namespace mtrain::launch
