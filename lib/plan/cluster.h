// A cluster: the machines that a plan is for, from a cluster file, and the links that groups of
// ranks use there. Rank r is device r; a domain has consecutive ranks.
#pragma once
#include <string>
#include <vector>

#include "base/dtype.h"
#include "mesh/mesh.h"
#include "recipe/recipe.h"
#include "recipe/schema/cluster.h"

namespace mtrain::plan {

struct ClusterLink {
  double bytes_per_s = 0;  // what a rank sends in one direction, while all others send, too
  double latency_s = 0;
};

// A cluster file with everything that was auto filled in.
struct Cluster {
  // For messages: the file, and where it has the kind and the size of a domain.
  std::string source, kind_at, domain_at;
  recipe::ClusterKind kind{};
  double memory_bytes = 0;  // of a rank's device, before `usable`
  double usable = 0;        // share of the memory that training may use
  double bf16_flops = 0, fp8_flops = 0, fp32_flops = 0;  // peaks of dense GEMMs; fp8 0: none
  double memory_bytes_per_s = 0;
  int64_t domain_gpus = 1, nodes = 1;
  // Whether the file leaves `nodes` to plans, which grow_cluster() then sets.
  bool nodes_are_auto = false;
  bool network_given = false;  // whether the file has the rate of a network card
  ClusterLink domain, network;
  std::string calibration, stack;  // a path, and a name; empty if the file has none

  int64_t gpus() const { return domain_gpus * nodes; }
  bool has_cpus() const { return kind == recipe::kCpuKind; }
  double usable_bytes() const { return usable * memory_bytes; }
  // Peak in FLOP/s of a rank that computes in this type. A rank on CPUs has a core for each of its
  // threads, and computes fp16 as fp32.
  double peak_flops(DType compute, int64_t threads) const;
  // Neither measured times nor fitted constants: a prediction has data sheets alone.
  bool uncalibrated() const { return calibration.empty() && stack.empty(); }
};

// Reads a cluster file and fills in what it leaves to the data sheets of its kind. Reports all
// mistakes, also those of the file itself; the cluster can be used only if there are none.
Cluster read_cluster(const std::string& path, Diagnostics& diagnostics);
// Does the same for text that is not in a file; messages call it `source`.
Cluster read_cluster_text(const std::string& text, const std::string& source,
                          Diagnostics& diagnostics);

// Gives a cluster whose nodes are auto as many as `world` ranks need. Reports a network between
// them of which neither the file nor a data sheet has the rate.
void grow_cluster(Cluster& cluster, int64_t world, Diagnostics& diagnostics);

// Returns the path of a cluster file: `name` itself, or the ready file of that name (`dgx_h100`) in
// the subfolder `clusters` of a folder of ready recipes. Reports a name that is neither.
std::string find_cluster(const std::string& name, const std::vector<std::string>& recipe_folders,
                         Diagnostics& diagnostics);

// Reports what contradicts the cluster in a recipe for `world` ranks: another hardware.gpu or
// hardware.gpus_per_node that the recipe itself gives, a device of another kind, or more ranks than
// devices. Names the places in both files.
void check_cluster(const Cluster& cluster, const recipe::Recipe& recipe, int64_t world,
                   Diagnostics& diagnostics);

// Returns settings for what the recipe leaves to its machine: train.device and, for GPUs,
// hardware.gpu and hardware.gpus_per_node.
std::vector<std::string> settings_for(const Cluster& cluster, const recipe::Recipe& recipe);

// How a group's ranks lie in the domains of a cluster, and the slowest link between them.
struct GroupLink {
  ClusterLink link;
  int64_t ranks = 1;
  int64_t domains = 1;     // that the ranks lie in
  int64_t per_domain = 1;  // ranks in the domain with the fewest of them
  bool in_domain() const { return domains == 1; }
};
GroupLink link_of(const Cluster& cluster, const std::vector<int64_t>& ranks);
// Returns the slowest of the groups along these axes: that in most domains, and of those the one
// with the fewest ranks in one of them.
GroupLink link_of(const Cluster& cluster, const mesh::Mesh& mesh, const mesh::Axes& axes);

}  // namespace mtrain::plan
