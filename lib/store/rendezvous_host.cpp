#include "store/rendezvous_host.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <set>

#include "store/loopback.h"

namespace mtrain::store {

namespace {

constexpr const char* kLoopback = "127.0.0.1";

struct Resolved {
  bool certain = true;             // false: the resolver could not be asked
  bool numeric = false;            // it is an address, not a name
  std::set<std::string> own = {};  // those of its addresses that are this host's
};

// Only an address of this host can be bound.
bool is_own(const addrinfo& a) {
  const int fd = socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool own = fd >= 0 && bind(fd, a.ai_addr, a.ai_addrlen) == 0;
  if (fd >= 0) close(fd);
  return own;
}

Resolved resolve(const std::string& host) {
  Resolved r;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  r.numeric = getaddrinfo(host.c_str(), nullptr, &hints, &found) == 0;
  hints.ai_flags = 0;
  if (!r.numeric)
    if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
      r.certain = error == EAI_NONAME;
      return r;
    }
  for (const addrinfo* a = found; a; a = a->ai_next) {
    char text[NI_MAXHOST];
    if (is_own(*a) &&
        getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      r.own.insert(text);
  }
  freeaddrinfo(found);
  return r;
}

}  // namespace

RendezvousHost rendezvous_host(const std::string& master_addr, bool one_host) {
  if (master_addr == "localhost") return {kLoopback, one_host ? kLoopback : master_addr};
  const Resolved r = resolve(master_addr);
  if (one_host && (!r.own.empty() || !r.certain)) return {kLoopback, kLoopback};
  const bool clear = r.own.size() == 1 && (r.numeric || !is_loopback(*r.own.begin()));
  return {clear ? *r.own.begin() : "", master_addr};
}

}  // namespace mtrain::store
