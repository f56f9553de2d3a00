// The ranks of a job as one of them sees them: its own rank, and the groups that it is in.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "mesh/mesh.h"

namespace mtrain::comm {

// Makes communicators; threads, shared memory, gloo and nccl implement it.
class Transport {
 public:
  virtual ~Transport() = default;
  // Exactly the ranks of the group call this, and each gets its own end. `name` is unique among the
  // groups of a job.
  virtual std::shared_ptr<Communicator> connect(const std::string& name,
                                                const std::vector<int>& ranks, int rank) = 0;
  // Tells ranks that wait in connect() why a peer will not come any more. Any thread may call it.
  virtual void abort(std::string_view /*reason*/) noexcept {}
};

class World {
 public:
  World(int rank, int size, std::shared_ptr<Transport> transport, Link link = {});
  // A world of one rank, whose groups copy at most.
  static World alone();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The group of these ranks, which include this one. All of them make it at its first use. `name`
  // says its purpose; the same ranks under another name are another group, so that two streams
  // never share one.
  Group group(const std::string& name, const std::vector<int>& ranks);
  // This rank's group along axes of the mesh.
  Group group(const std::string& name, const mesh::Mesh& mesh, const mesh::Axes& axes);
  Group world_group();  // all ranks of the job

  // Aborts every group, also those that ranks still wait for. Any thread may call it.
  void abort(std::string_view reason) noexcept;

 private:
  int rank_, size_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<EmulatedLink> link_;  // null where no link is emulated
  struct Groups;
  std::shared_ptr<Groups> groups_;
};

}  // namespace mtrain::comm
