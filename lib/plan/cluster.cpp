#include "plan/cluster.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/gpu_facts.h"
#include "base/math.h"
#include "base/strings.h"
#include "recipe/load/read_section.h"

namespace mtrain::plan {

namespace {

namespace fs = std::filesystem;

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6, kGib = 1 << 30;
constexpr double kBytesPerGbit = kGiga / 8;
// Stands for the rate of a network that does not exist.
constexpr double kNoRate = 1;

// What `auto` stands for; 0: no data sheet has it, and the file must give it.
struct KindFacts {
  double memory_gib = 0, bf16 = 0, fp8 = 0, fp32 = 0, memory_rate = 0;
  double domain_rate = 0, network_rate = 0;
  int64_t domain_gpus = 0;
};

KindFacts facts_of(recipe::ClusterKind kind) {
  if (kind == recipe::kCpuKind)
    return {.bf16 = kCpuFacts.core_flops,
            .fp32 = kCpuFacts.core_flops,
            .memory_rate = kCpuFacts.memory_bytes_per_second,
            .domain_rate = kCpuFacts.link_bytes_per_second};
  const GpuFacts& f = facts(Gpu(int(kind)));
  return {.memory_gib = f.memory_gib(),
          .bf16 = f.bf16_flops,
          .fp8 = f.fp8_flops,
          .fp32 = f.fp32_flops,
          .memory_rate = f.memory_bytes_per_second,
          .domain_rate = f.link_bytes_per_second,
          .network_rate = f.network_bytes_per_second,
          .domain_gpus = f.domain_gpus};
}

Cluster resolve(const recipe::ClusterConfig& c, const std::string& source,
                Diagnostics& diagnostics) {
  Cluster out{.source = source};
  if (!c.gpu.kind) {
    if (!diagnostics.reported("gpu.kind"))
      diagnostics.add("gpu.kind", "is missing",
                      "write the kind of the devices, such as gpu: h100; `cpu` is one core");
    return out;
  }
  out.kind = *c.gpu.kind;
  const KindFacts known = facts_of(out.kind);
  const auto value = [&](const char* field, const std::optional<double>& given, double factor,
                         double sheet) {
    if (given) return *given * factor;
    if (sheet == 0 && diagnostics.sound({field}))
      diagnostics.add(
          field, fmt::format("is missing, and {} has no data sheet with it", enum_name(out.kind)));
    return sheet;
  };
  out.usable = c.gpu.usable;
  out.memory_bytes = value("gpu.memory_gib", c.gpu.memory_gib, kGib, known.memory_gib * kGib);
  const recipe::PeakTflops& peak = c.gpu.peak_tflops;
  out.bf16_flops = value("gpu.peak_tflops.bf16", peak.bf16, kTera, known.bf16);
  out.fp32_flops = value("gpu.peak_tflops.fp32", peak.fp32, kTera, known.fp32);
  out.fp8_flops = peak.fp8 ? *peak.fp8 * kTera : known.fp8;
  out.memory_bytes_per_s =
      value("gpu.memory_gbytes_s", c.gpu.memory_gbytes_s, kGiga, known.memory_rate);
  out.domain_gpus = c.domain.gpus.value_or(known.domain_gpus);
  if (out.domain_gpus == 0) {
    if (diagnostics.sound({"domain.gpus"}))
      diagnostics.add("domain.gpus", "is missing", "write how many ranks a host has");
    out.domain_gpus = 1;
  }
  out.nodes = c.nodes.value_or(1);
  out.nodes_are_auto = !c.nodes;
  // A domain of one device has no links, and a single domain no network.
  const bool links = out.domain_gpus > 1, network = out.nodes > 1;
  out.network_given = c.network.gbps.has_value();
  out.domain = {.bytes_per_s = value("domain.gbps", c.domain.gbps, kBytesPerGbit,
                                     links ? known.domain_rate : 1),
                .latency_s = c.domain.latency_us * kMicro};
  out.network = {
      .bytes_per_s = value("network.gbps", c.network.gbps, kBytesPerGbit,
                           network ? known.network_rate : std::max(known.network_rate, kNoRate)) *
                     c.network.nics_per_gpu / c.network.oversubscription,
      .latency_s = c.network.latency_us * kMicro};
  if (c.calibration)
    out.calibration = (fs::path(source).parent_path() / *c.calibration).lexically_normal().string();
  out.stack = c.stack.value_or("");
  return out;
}

}  // namespace

double Cluster::peak_flops(DType compute, int64_t threads) const {
  const bool fp32 = compute == DType::f32 || (has_cpus() && compute == DType::f16);
  const auto cores = double(has_cpus() ? std::max<int64_t>(1, threads) : 1);
  return cores * (fp32 ? fp32_flops : bf16_flops);
}

Cluster read_cluster_text(const std::string& text, const std::string& source,
                          Diagnostics& diagnostics) {
  // The places of a cluster file's fields are not those of a recipe, which may have the same names.
  Diagnostics own;
  recipe::ClusterConfig config;
  recipe::read_section(text, source, config, own);
  Cluster cluster = resolve(config, source, own);
  const auto place = [&](const char* field) {
    const recipe::SourceLocation at = own.location_of(field);
    return at.known() ? at.str() : source;
  };
  cluster.kind_at = place("gpu.kind");
  cluster.domain_at = place("domain.gpus");
  diagnostics.add_source(source);
  for (const recipe::Diagnostic& d : own.sorted())
    diagnostics.add_at(d.severity, d.location, d.field, d.reason, d.hint);
  return cluster;
}

Cluster read_cluster(const std::string& path, Diagnostics& diagnostics) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& e) {
    diagnostics.add_at(recipe::Severity::error, {path, 0, 0}, "", e.message(),
                       "write a cluster file, or use one of recipes/clusters");
    return {.source = path};
  }
  return read_cluster_text(text, path, diagnostics);
}

void grow_cluster(Cluster& c, int64_t world, Diagnostics& diagnostics) {
  if (!c.nodes_are_auto) return;
  c.nodes = std::max<int64_t>(1, ceil_div(world, c.domain_gpus));
  if (c.nodes > 1 && c.has_cpus() && !c.network_given)
    diagnostics.add_at(recipe::Severity::error, {c.source, 0, 0}, "network.gbps",
                       fmt::format("is missing, and {} has no data sheet with it: {} ranks need {} "
                                   "hosts of {}",
                                   enum_name(c.kind), world, c.nodes, c.domain_gpus),
                       "write the rate of the network between hosts");
}

std::string find_cluster(const std::string& name, const std::vector<std::string>& recipe_folders,
                         Diagnostics& diagnostics) {
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored)) return name;
  std::vector<std::string> ready;
  for (const std::string& folder : recipe_folders)
    for (const auto& entry : fs::directory_iterator(fs::path(folder) / "clusters", ignored)) {
      if (entry.path().extension() != ".yaml") continue;
      if (entry.path().stem() == fs::path(name).stem()) return entry.path().string();
      ready.push_back(entry.path().stem().string());
    }
  std::ranges::sort(ready);
  const std::string near = nearest(name, ready);
  std::string all;
  for (const std::string& r : ready) all += (all.empty() ? "" : ", ") + r;
  diagnostics.add_at(recipe::Severity::error, {name, 0, 0}, "",
                     "no such file, and no ready cluster has this name",
                     near.empty() ? "ready clusters: " + all
                                  : fmt::format("did you mean {}? ready clusters: {}", near, all));
  return "";
}

void check_cluster(const Cluster& c, const recipe::Recipe& r, int64_t world,
                   Diagnostics& diagnostics) {
  const bool cuda = r.train.device == recipe::DeviceChoice::cuda;
  const auto contradicts = [&](const char* field, std::string_view own, const std::string& other,
                               const std::string& other_at) {
    diagnostics.add(field, fmt::format("is {}, but the cluster has {} ({})", own, other, other_at),
                    fmt::format("remove {}, or plan for another cluster", field));
  };
  const std::string devices(enum_name(c.kind));
  if (r.given("hardware.gpu") && (c.has_cpus() || recipe::cluster_kind(r.hardware.gpu) != c.kind))
    contradicts("hardware.gpu", enum_name(r.hardware.gpu), devices, c.kind_at);
  if (r.given("hardware.gpus_per_node") && r.hardware.gpus_per_node != c.domain_gpus)
    contradicts("hardware.gpus_per_node", std::to_string(r.hardware.gpus_per_node),
                fmt::format("{} in a domain", c.domain_gpus), c.domain_at);
  if (r.given("train.device") && cuda == c.has_cpus())
    contradicts("train.device", enum_name(r.train.device), devices, c.kind_at);
  if (world > c.gpus())
    diagnostics.add_at(
        recipe::Severity::error, {c.source, 0, 0}, "nodes",
        fmt::format("{} x {} devices are too few for {} ranks", c.nodes, c.domain_gpus, world),
        fmt::format("write nodes: {}, or leave nodes out", ceil_div(world, c.domain_gpus)));
}

std::vector<std::string> settings_for(const Cluster& cluster, const recipe::Recipe& recipe) {
  std::vector<std::string> settings;
  const auto set = [&](const char* field, const std::string& value) {
    if (!recipe.given(field)) settings.push_back(fmt::format("{}={}", field, value));
  };
  set("train.device", cluster.has_cpus() ? "cpu" : "cuda");
  if (!cluster.has_cpus()) {
    set("hardware.gpu", std::string(enum_name(cluster.kind)));
    set("hardware.gpus_per_node", std::to_string(cluster.domain_gpus));
  }
  return settings;
}

GroupLink link_of(const Cluster& c, const std::vector<int64_t>& ranks) {
  MT_CHECK(!ranks.empty(), "the link of a group without ranks");
  std::vector<int64_t> domains;
  domains.reserve(ranks.size());
  for (const int64_t rank : ranks) domains.push_back(rank / c.domain_gpus);
  if (!std::ranges::is_sorted(domains)) std::ranges::sort(domains);
  GroupLink link{.ranks = int64_t(ranks.size()), .domains = 0, .per_domain = int64_t(ranks.size())};
  for (auto first = domains.begin(); first != domains.end(); ++link.domains) {
    const auto next = std::find_if(first, domains.end(), [&](int64_t d) { return d != *first; });
    link.per_domain = std::min(link.per_domain, int64_t(next - first));
    first = next;
  }
  link.link = link.in_domain() ? c.domain : c.network;
  return link;
}

GroupLink link_of(const Cluster& c, const mesh::Mesh& mesh, const mesh::Axes& axes) {
  GroupLink slowest = link_of(c, mesh.group(0, axes));
  for (const std::vector<int64_t>& ranks : mesh.groups(axes)) {
    const GroupLink l = link_of(c, ranks);
    if (std::pair{-l.domains, l.per_domain} < std::pair{-slowest.domains, slowest.per_domain})
      slowest = l;
  }
  return slowest;
}

}  // namespace mtrain::plan
