// A client of etcd, version 3, through the JSON gateway that every etcd server has.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"
#include "launch/etcd_options.h"

namespace httplib {
class ClientImpl;
}

namespace mtrain::launch {

struct EtcdEntry {
  std::string value;
  int64_t created = 0;  // etcd's revision in which the key was created
  int64_t lease = 0;    // 0: the key has none
};

// Any thread may call it; calls take turns. All functions throw CommError if no server answers now,
// and UserError if one refuses this user, or is not an etcd of version 3.
class EtcdClient {
 public:
  explicit EtcdClient(EtcdOptions options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  std::optional<EtcdEntry> get(const std::string& key);
  // Creates the key. Returns false if it exists.
  bool create(const std::string& key, const std::string& value, int64_t lease);
  // Sets `key` if `guard` still is the key that revision `created` has created. Returns false if it
  // is not, or if the lease has expired.
  bool put_if(const std::string& guard, int64_t created, const std::string& key,
              const std::string& value, int64_t lease);

  // Keys that are set with a lease vanish when it expires.
  int64_t grant(int seconds);
  bool keep_alive(int64_t lease);                    // false: it has expired
  std::chrono::seconds time_to_live(int64_t lease);  // full seconds; 0: it has expired
  void revoke(int64_t lease);

  std::string where() const;  // the servers, for messages
  // Returns the address of this host from which the servers are reached; "": none is known.
  std::string own_address() const;

 private:
  struct Reply;
  Reply post(size_t server, const std::string& path, const std::string& body);
  Reply post_once(size_t server, const std::string& path, const std::string& body);
  Reply post_to_any(const std::string& path, const std::string& body);
  nlohmann::json call(const std::string& path, const nlohmann::json& request);
  void authenticate();
  [[noreturn]] void refuse(const Reply& reply) const;

  const EtcdOptions o_;
  std::mutex mutex_;                                               // of the members below
  std::vector<std::unique_ptr<httplib::ClientImpl>> connections_;  // to the servers; null: none yet
  size_t server_ = 0;                                              // the one that has answered last
  std::string auth_token_;  // that etcd has issued for the user
};

}  // namespace mtrain::launch
