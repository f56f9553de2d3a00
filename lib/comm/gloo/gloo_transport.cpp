#include "comm/gloo/gloo_transport.h"

#include <sstream>

#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "comm/failure_reporter.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/gloo/gloo_mesh.h"
#include "store/loopback.h"
#include "store/store.h"

namespace mtrain::comm {

namespace {

using std::chrono::milliseconds;

// Gives gloo access to mtrain's store, for one group's rendezvous.
class Rendezvous : public gloo::rendezvous::Store {
 public:
  Rendezvous(mtrain::store::Store& store, std::string group)
      : store_(store), group_(std::move(group)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(full_key(key), std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    try {
      const std::string value = store_.get(full_key(key));
      return {value.begin(), value.end()};
    } catch (const CommError& e) {
      // Gloo's keys are "1" and "rank_1".
      throw CommError(fmt::format("rank {} of the group did not connect: {}",
                                  key.substr(key.find('_') + 1), e.message()),
                      e.hint());
    }
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  std::string full_key(const std::string& key) const {
    return fmt::format("gloo/{}/{}", group_, key);
  }
  mtrain::store::Store& store_;
  const std::string group_;
};

std::string own_address(mtrain::store::Store& store, const GlooOptions& o) {
  constexpr const char* kPaths = "gloo paths";
  store.put(kPaths, o.rank, o.size, store.local_address() + " " + store.server_address());
  std::vector<StorePath> paths;
  for (const std::string& text : store.all(kPaths, o.size)) {
    StorePath p;
    std::istringstream(text) >> p.own >> p.server;
    paths.push_back(p);
  }
  return gloo_address(paths, o.rank);
}

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(const GlooOptions& o)
      : options_(o), meeting_(o.store, std::chrono::duration_cast<milliseconds>(o.timeout)) {
    const auto timeout = std::chrono::duration_cast<milliseconds>(o.timeout);
    const std::string address = own_address(meeting_, o);
    // A failing rank must not wait long for a store that is gone.
    reports_ = std::make_shared<mtrain::store::Store>(o.store, timeout, std::chrono::seconds(2));
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    try {
      device_ = gloo::transport::tcp::CreateDevice(attributes);
    } catch (const std::exception& e) {
      throw CommError(fmt::format("no network interface has the address {}: {}", address, e.what()),
                      "MASTER_ADDR must be reached through a network that all hosts share");
    }
  }

  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic) override {
    Rendezvous rendezvous(meeting_, name);
    const int n = int(ranks.size());
    std::unique_ptr<GlooMesh> mesh;
    try {
      mesh = std::make_unique<GlooMesh>(device_, rendezvous, rank, n, options_.timeout);
    } catch (const CommError& e) {
      throw CommError(fmt::format("group {}: {}", name, e.message()), e.hint());
    } catch (const std::exception& e) {
      throw CommError(fmt::format("group {}: cannot connect its ranks: {}", name, e.what()),
                      "a rank has ended, or a firewall is between the hosts");
    }
    return gloo_communicator(
        std::move(mesh),
        std::make_unique<FailureReporter>(reports_, name, rank, n, options_.timeout),
        options_.timeout);
  }

 private:
  const GlooOptions options_;
  // All groups connect through it: ranks join their groups one after another, in the same order.
  mtrain::store::Store meeting_;
  std::shared_ptr<mtrain::store::Store> reports_;
  std::shared_ptr<gloo::transport::Device> device_;  // one thread moves the data of all groups
};

}  // namespace

std::string gloo_address(const std::vector<StorePath>& paths, int rank) {
  const StorePath& own = paths[size_t(rank)];
  if (!store::is_loopback(own.own)) return own.own;
  for (const StorePath& p : paths)
    if (!store::is_loopback(p.own)) return p.server;
  return "127.0.0.1";  // all ranks are on one host
}

std::shared_ptr<Transport> gloo_transport(const GlooOptions& options) {
  MT_CHECK(!sigpipe_is_deadly(), "a program that uses gloo must ignore SIGPIPE");
  return std::make_shared<GlooTransport>(options);
}

}  // namespace mtrain::comm
