// The ranks of a job as one rank sees them: its own rank, and the groups that it is in. Also the
// interface of transports, which connect the ranks of a group.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/token.h"
#include "comm/group.h"
#include "comm/mailbox.h"
#include "mesh/group_split.h"
#include "mesh/mesh.h"

namespace mtrain::comm {

using Traffic = GroupTraffic;

// Makes the communicators of groups. thread/, process/ (shared memory), gloo/ and nccl/ implement
// it; process/process_world.cpp chooses one for a run.
// How threads of a rank reach other ranks apart from all groups.
struct JobAccess {
  Token token;              // of the job
  std::string own, server;  // numeric addresses of the ends of the rank's connection to the store
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Exactly the ranks of the group call this, and each gets its own end. `ranks` are ranks of the
  // world, and `rank` is this rank's place among them. `name` is unique among the groups of a job.
  virtual std::shared_ptr<Communicator> connect(const std::string& name,
                                                const std::vector<int>& ranks, int rank,
                                                Traffic traffic) = 0;
  // Connects the groups of all splits. Every rank of the job calls it, before any group is used,
  // with the same list of splits. The names of groups are as in connect(). Returns this rank's
  // ends, null where it has no group. Returns an empty list if each group connects by connect()
  // instead.
  virtual std::vector<std::shared_ptr<Communicator>> connect_all(
      const std::vector<mesh::GroupSplit>& /*splits*/) {
    return {};
  }
  // Returns this rank's end of the mailbox of all ranks; null if the transport has none.
  virtual std::shared_ptr<Mailbox> mailbox() { return nullptr; }
  // Nothing if the transport has no addresses.
  virtual std::optional<JobAccess> access() { return std::nullopt; }
  // Makes ranks that wait in connect() throw, with the reason why a peer will not arrive. Any
  // thread may call it.
  virtual void abort(std::string_view /*reason*/) noexcept {}
  // Returns the first reason that a rank has given to abort(); "" while there is none.
  virtual std::string failure() { return ""; }
};

class World {
 public:
  World(int rank, int size, std::shared_ptr<Transport> transport, Link link = {});
  // Returns a world of one rank, which needs no transport.
  static World alone();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Connects the groups of all splits at once, if the transport can. Every rank calls it, before
  // its first group, with the same list of splits. group() then finds them by name and ranks.
  void connect(const std::vector<mesh::GroupSplit>& splits);
  // The names of the groups of several ranks that this rank has, with these ranks: "tp:0,1".
  std::vector<std::string> group_names() const;

  // Returns the group of these ranks, which include this one. All of them call this, and connect at
  // the first call. `name` says the purpose. The same ranks under another name are another group:
  // two streams never share one.
  Group group(const std::string& name, const std::vector<int>& ranks,
              Traffic traffic = Traffic::bulk);
  // Returns this rank's group along axes of the mesh.
  Group group(const std::string& name, const mesh::Mesh& mesh, const mesh::Axes& axes,
              Traffic traffic = Traffic::bulk);
  Group world_group(Traffic traffic = Traffic::bulk);  // all ranks of the job

  // Returns this rank's end of the mailbox of all ranks. It must not outlive the world.
  std::shared_ptr<Mailbox> mailbox() {
    return transport_ ? transport_->mailbox() : shared_mailbox();
  }

  // Nothing in a job of one rank.
  std::optional<JobAccess> access() { return transport_ ? transport_->access() : std::nullopt; }

  // Aborts every group, including groups that are still connecting. Any thread may call it.
  void abort(std::string_view reason) noexcept;
  // Returns why a rank has aborted; "" while none has. Throws CommError if the job's store is gone.
  std::string failure() { return transport_ ? transport_->failure() : ""; }

 private:
  int rank_, size_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<EmulatedLink> link_;  // null if no link is emulated
  struct Groups;
  std::shared_ptr<Groups> groups_;
};

}  // namespace mtrain::comm
