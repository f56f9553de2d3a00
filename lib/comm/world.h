// All ranks of a job as one of them sees it: who it is, and the groups it shares.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "mesh/mesh.h"

namespace mtrain {

// What makes communicators; thread, shared memory, gloo and nccl implement it.
class Transport {
 public:
  virtual ~Transport() = default;
  // Called by exactly the ranks of the group, each of which gets its end. `name` is unique among
  // the groups of a job.
  virtual std::shared_ptr<Communicator> connect(const std::string& name,
                                                const std::vector<int>& ranks, int rank) = 0;
  // Ranks that wait in connect() for one that will not come any more are told why; any thread.
  virtual void abort(std::string_view /*reason*/) noexcept {}
};

class World {
 public:
  World(int rank, int size, std::shared_ptr<Transport> transport, Link link = {});
  // A world of one rank, whose groups copy at most.
  static World alone();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The group of these ranks, which include this one; made at its first use, by all of them.
  // `name` says what it is for; the same ranks under another name are another group, so that two
  // streams never share one.
  Group group(const std::string& name, const std::vector<int>& ranks);
  // This rank's group along axes of the mesh.
  Group group(const std::string& name, const Mesh& mesh, const Axes& axes);
  Group world_group();

  // Of every group, those that ranks still wait for to be made, too; any thread.
  void abort(std::string_view reason) noexcept;

 private:
  int rank_, size_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<EmulatedLink> link_;  // null: none is emulated
  struct Groups;
  std::shared_ptr<Groups> groups_;
};

}  // namespace mtrain
