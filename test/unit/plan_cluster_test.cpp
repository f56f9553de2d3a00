#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <regex>

#include "base/file.h"
#include "base/gpu_facts.h"
#include "interchange/model_source.h"
#include "plan/cluster.h"
#include "plan/load_recipe.h"
#include "plan/stack_file.h"
#include "recipe/load/read_section.h"
#include "test/support/temporary_folder.h"

namespace plan_cluster_test {

using namespace mtrain;
using namespace mtrain::plan;
using mtrain::recipe::Severity;

namespace {

Cluster accepted(const std::string& text) {
  Diagnostics diagnostics;
  const Cluster c = read_cluster_text(text, "clusters/c.yaml", diagnostics);
  INFO(text << "\n" << diagnostics.text(Severity::error));
  CHECK_FALSE(diagnostics.has_errors());
  return c;
}

std::string mistakes(const std::string& text) {
  Diagnostics diagnostics;
  read_cluster_text(text, "c.yaml", diagnostics);
  return diagnostics.text(Severity::error);
}

std::vector<int64_t> range(int64_t from, int64_t to, int64_t stride = 1) {
  std::vector<int64_t> ranks;
  for (int64_t r = from; r < to; r += stride) ranks.push_back(r);
  return ranks;
}

}  // namespace

TEST_CASE("the kind of a cluster's GPUs fills in what the file leaves to the data sheets") {
  for (const GpuFacts& f : kGpuFacts) {
    const Cluster c = accepted(fmt::format("gpu: {}\nnodes: 4", enum_name(f.gpu)));
    INFO(enum_name(f.gpu));
    CHECK(c.kind == recipe::cluster_kind(f.gpu));
    CHECK_FALSE(c.has_cpus());
    CHECK(c.bf16_flops == f.bf16_flops);
    CHECK(c.fp8_flops == f.fp8_flops);
    CHECK(c.memory_bytes == f.memory_gib() * double(1 << 30));
    CHECK(c.usable_bytes() == 0.94 * c.memory_bytes);
    CHECK(c.memory_bytes_per_s == f.memory_bytes_per_second);
    CHECK(c.gpus() == 4 * f.domain_gpus);
    CHECK(c.network.bytes_per_s == f.network_bytes_per_second);
    if (f.domain_gpus > 1) CHECK(c.domain.bytes_per_s == f.link_bytes_per_second);
    CHECK(c.uncalibrated());
  }
}

TEST_CASE("what the file gives wins over the data sheets") {
  const Cluster c = accepted(R"(
gpu: {kind: h100, memory_gib: 94, usable: 0.9, peak_tflops: {bf16: 835}, memory_gbytes_s: 3900}
domain: {gpus: 4, gbps: 2400, latency_us: 2}
network: {gbps: 200, latency_us: 10, nics_per_gpu: 2, oversubscription: 4}
nodes: 16
calibration: measured/m.yaml
stack: mtrain
)");
  CHECK(c.memory_bytes == 94.0 * (1 << 30));
  CHECK(c.usable == 0.9);
  CHECK(c.bf16_flops == 835e12);
  CHECK(c.fp8_flops == facts(Gpu::h100).fp8_flops);
  CHECK(c.memory_bytes_per_s == 3.9e12);
  CHECK(c.gpus() == 64);
  CHECK(c.domain.bytes_per_s == 300e9);
  CHECK(c.domain.latency_s == Approx(2e-6));
  CHECK(c.network.bytes_per_s == 25e9 * 2 / 4);
  CHECK(c.network.latency_s == Approx(10e-6));
  CHECK(c.calibration == "clusters/measured/m.yaml");  // beside the cluster file
  CHECK(c.stack == "mtrain");
  CHECK_FALSE(c.uncalibrated());
}

TEST_CASE("all mistakes of a cluster file are reported at once, with their lines") {
  const std::string all = mistakes(
      "gpu:\n"
      "  kind: h1000\n"
      "  memory_gb: 80\n"
      "  usable: 1.5\n"
      "domain: 8\n"
      "network: {latancy_us: 5, gpus: 8}\n"
      "nodes: 0\n"
      "pp: 2\n");
  for (const char* part :
       {"c.yaml:2:3: error: gpu.kind: ", "h100", "c.yaml:3:3: error: gpu.memory_gb: there is no",
        "did you mean gpu.memory_gib?", "c.yaml:4:3: error: gpu.usable: ",
        "c.yaml:5:1: error: domain: is a section of several keys", "gpus, gbps, latency_us",
        "c.yaml:6:11: error: network.latancy_us: ", "did you mean network.latency_us?",
        "network.gpus: there is no such key", "did you mean domain.gpus?",
        "c.yaml:7:1: error: nodes: ", "c.yaml:8:1: error: pp: there is no such key"}) {
    INFO(part << " in\n" << all);
    CHECK(all.find(part) != std::string::npos);
  }
  CHECK(mistakes("").find("gpu.kind: is missing") != std::string::npos);
  CHECK(mistakes("gpu: cpu").find("gpu.memory_gib: is missing") != std::string::npos);
  CHECK(mistakes("gpu: cpu").find("domain.gpus: is missing") != std::string::npos);
  CHECK(mistakes("- h100").find("expected keys and values") != std::string::npos);
  CHECK(mistakes("gpu: h100\ngpu: h200").find("gpu") != std::string::npos);
  CHECK(mistakes("gpu: {kind: h100").find("c.yaml:") != std::string::npos);
  // A network of CPUs has no data sheet either.
  CHECK(mistakes("gpu: {kind: cpu, memory_gib: 8}\ndomain: {gpus: 2}\nnodes: 2")
            .find("network.gbps: is missing") != std::string::npos);
}

TEST_CASE("broken cluster files are refused, and never crash") {
  const std::string good = read_file(MTRAIN_SOURCE_DIR "/recipes/clusters/cpu_2cores.yaml");
  for (size_t i = 0; i < good.size(); ++i)
    for (const char c : {'\0', '{', ':', '\n', '-', '9', '&'}) {
      std::string text = good;
      text[i] = c;
      Diagnostics diagnostics;
      const Cluster cluster = read_cluster_text(text, "c.yaml", diagnostics);
      if (!diagnostics.has_errors()) CHECK(cluster.memory_bytes > 0);
    }
}

TEST_CASE("ready clusters are found by name, and every one can be read") {
  const std::vector<std::string> folders{MTRAIN_SOURCE_DIR "/recipes"};
  std::map<std::string, int64_t> gpus{// of a domain
                                      {"dgx_h100", 8},
                                      {"dgx_h200", 8},
                                      {"dgx_b200", 8},
                                      {"gb200_nvl72", 72},
                                      {"cpu_2cores", 2}};
  for (const auto& entry :
       std::filesystem::directory_iterator(MTRAIN_SOURCE_DIR "/recipes/clusters")) {
    if (entry.is_directory()) continue;  // of stacks
    const std::string name = entry.path().stem();
    INFO(name);
    REQUIRE(gpus.contains(name));
    Diagnostics diagnostics;
    const std::string path = find_cluster(name, folders, diagnostics);
    const Cluster c = read_cluster(path, diagnostics);
    INFO(diagnostics.text(Severity::error));
    CHECK_FALSE(diagnostics.has_errors());
    CHECK(c.gpus() == gpus[name]);
    gpus.erase(name);
  }
  CHECK(gpus.empty());
  Diagnostics diagnostics;
  CHECK(find_cluster("dgx_h10", folders, diagnostics).empty());
  CHECK(diagnostics.text(Severity::error).find("did you mean dgx_h100?") != std::string::npos);
  Diagnostics absent;
  read_cluster("no/such.yaml", absent);
  CHECK(absent.text(Severity::error).find("no/such.yaml") != std::string::npos);
}

TEST_CASE("a cluster without nodes has as many as a plan's ranks need") {
  Cluster c = accepted("gpu: h100");
  Diagnostics diagnostics;
  for (const auto& [world, nodes] : {std::pair{1, 1}, {8, 1}, {9, 2}, {16384, 2048}}) {
    grow_cluster(c, world, diagnostics);
    CHECK(c.nodes == nodes);
  }
  CHECK(c.network.bytes_per_s == facts(Gpu::h100).network_bytes_per_second);
  Cluster fixed = accepted("gpu: h100\nnodes: 2");
  grow_cluster(fixed, 64, diagnostics);
  CHECK(fixed.nodes == 2);
  CHECK_FALSE(diagnostics.has_errors());
  Cluster cpu = accepted("gpu: {kind: cpu, memory_gib: 8}\ndomain: {gpus: 2, gbps: 32}");
  grow_cluster(cpu, 2, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  grow_cluster(cpu, 4, diagnostics);
  CHECK(diagnostics.text(Severity::error).find("4 ranks need 2 hosts of 2") != std::string::npos);
  Diagnostics none;
  Cluster linked =
      accepted("gpu: {kind: cpu, memory_gib: 8}\ndomain: {gpus: 2, gbps: 32}\nnetwork: {gbps: 10}");
  grow_cluster(linked, 4, none);
  CHECK_FALSE(none.has_errors());
}

TEST_CASE("groups that straddle domains use the network, unless their ranks are few") {
  const Cluster c = accepted("gpu: gb200\nnodes: 16");
  REQUIRE(c.domain_gpus == 72);
  CHECK(link_of(c, range(0, 64)).in_domain());
  const GroupLink second = link_of(c, range(64, 128));
  CHECK(second.domains == 2);
  CHECK(second.per_domain == 8);
  CHECK(second.link.bytes_per_s == c.network.bytes_per_s);
  // All groups along an axis are as slow as the slowest: some group of 64 straddles, none of 8.
  const mesh::Mesh wide({{mesh::Axis::dp_shard, 18}, {mesh::Axis::cp, 64}}),
      narrow({{mesh::Axis::dp_shard, 144}, {mesh::Axis::cp, 8}});
  CHECK(link_of(c, wide, {mesh::Axis::cp}).domains == 2);
  CHECK(link_of(c, narrow, {mesh::Axis::cp}).in_domain());
}

TEST_CASE("a cluster file takes ready constants of a program, or those beside it") {
  const std::vector<std::string> folders{MTRAIN_SOURCE_DIR "/recipes"};
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folders[0] + "/clusters/stacks")) {
    const std::string file = entry.path().stem();
    const size_t end = file.rfind('_');
    INFO(file);
    const Cluster c = accepted("gpu: " + file.substr(end + 1) + "\nstack: " + file.substr(0, end));
    Diagnostics diagnostics;
    const StackConstants constants = stack_of(c, folders, diagnostics);
    INFO(diagnostics.text(Severity::error));
    CHECK_FALSE(diagnostics.has_errors());
    CHECK((constants.gemm > 0.2 && constants.gemm < 1));
    ++count;
  }
  CHECK(count >= 7);
  Diagnostics diagnostics;
  stack_of(accepted("gpu: h100\nstack: llmqq"), folders, diagnostics);
  CHECK(diagnostics.text(Severity::error).find("llmqq has no fitted constants for h100") !=
        std::string::npos);
  CHECK(diagnostics.text(Severity::error).find("llmq,") != std::string::npos);

  const TemporaryFolder own;
  std::filesystem::create_directory(own / "stacks");
  std::ofstream(own / "stacks/llmq_h100.yaml") << "gpu: h100\nconstants: {gemm: 0.25}\n";
  std::ofstream(own / "c.yaml") << "gpu: h100\nstack: llmq\n";
  Diagnostics none;
  const Cluster c = read_cluster((own / "c.yaml").string(), none);
  CHECK(stack_of(c, folders, none).gemm == 0.25);
  CHECK_FALSE(none.has_errors());
}

TEST_CASE("a recipe that contradicts the cluster is refused, naming both places") {
  const Cluster cluster = accepted("nodes: 2\ngpu: h200");
  const auto faults = [&](const std::string& hardware, int64_t world, const Cluster& on) {
    Diagnostics diagnostics;
    const std::string text =
        "model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4,\n"
        "        ffn_hidden_size: 704, vocab_size: 512}\n"
        "dataset: {train: x, seq_length: 1024}\n"
        "train: {global_batch_size: 32, micro_batch_size: 1}\n" +
        hardware;
    const Recipe r = load_recipe_text(interchange::model_source(), text, "r.yaml", {}, diagnostics,
                                      1, {.dry_run = true});
    REQUIRE_FALSE(diagnostics.has_errors());
    check_cluster(on, r, world, diagnostics);
    return diagnostics.text(Severity::error);
  };
  CHECK(faults("", 16, cluster).empty());
  CHECK(faults("hardware: {gpu: h200, gpus_per_node: 8}", 16, cluster).empty());
  const std::string gpu = faults("hardware: {gpu: h100}", 16, cluster);
  INFO(gpu);
  CHECK(gpu.find("r.yaml:5:12: error: hardware.gpu: is h100, but the cluster has h200 "
                 "(clusters/c.yaml:2:1)") != std::string::npos);
  CHECK(faults("hardware: {gpus_per_node: 4}", 16, cluster).find("8 in a domain") !=
        std::string::npos);
  const std::string many = faults("", 17, cluster);
  CHECK(many.find("2 x 8 devices are too few for 17 ranks") != std::string::npos);
  CHECK(many.find("nodes: 3") != std::string::npos);
  const Cluster cores = accepted("gpu: {kind: cpu, memory_gib: 4}\ndomain: {gpus: 2}");
  CHECK(faults("hardware: {gpu: h100}", 2, cores).find("the cluster has cpu") != std::string::npos);
}

TEST_CASE("a cluster sets what a recipe leaves to its machine") {
  const auto settings = [](const std::string& recipe, const Cluster& cluster) {
    Diagnostics diagnostics;
    return settings_for(
        cluster, load_recipe_text(interchange::model_source(), "model: {}\n" + recipe, "r.yaml", {},
                                  diagnostics, 1));
  };
  const Cluster gpus = accepted("gpu: h200\nnodes: 2"),
                cores = accepted("gpu: {kind: cpu, memory_gib: 4}\ndomain: {gpus: 2}");
  CHECK(settings("", gpus) == std::vector<std::string>{"train.device=cuda", "hardware.gpu=h200",
                                                       "hardware.gpus_per_node=8"});
  CHECK(settings("hardware: {gpu: h100}\ntrain: {device: cuda}", gpus) ==
        std::vector<std::string>{"hardware.gpus_per_node=8"});
  CHECK(settings("", cores) == std::vector<std::string>{"train.device=cpu"});
}

TEST_CASE("a group's link is that of the domain, or of the network where it leaves one") {
  const Cluster c = accepted("gpu: h100\nnodes: 4");
  CHECK(link_of(c, range(0, 8)).in_domain());
  CHECK(link_of(c, range(0, 8)).link.bytes_per_s == 450e9);
  const GroupLink wide = link_of(c, range(4, 12));
  CHECK(wide.domains == 2);
  CHECK(wide.per_domain == 4);
  CHECK(wide.link.bytes_per_s == 50e9);
  CHECK(link_of(c, range(0, 32, 8)).per_domain == 1);
  CHECK(link_of(c, {3}).in_domain());
  // 32 ranks: pp 2, dp 4, tp 4. tp is in a domain, dp is over two of them, pp over two.
  const mesh::Mesh mesh = mesh::device_mesh({.pp = 2, .dp_shard = 4, .tp = 4});
  using mesh::Axis;
  CHECK(link_of(c, mesh, {Axis::tp}).in_domain());
  CHECK(link_of(c, mesh, {Axis::dp_shard}).domains == 2);
  CHECK(link_of(c, mesh, {Axis::dp_shard}).per_domain == 2);
  CHECK(link_of(c, mesh, {Axis::pp}).domains == 2);
  // One group of three crosses the border of a domain, others do not.
  const mesh::Mesh three = mesh::device_mesh({.dp_shard = 4, .tp = 3});
  CHECK(link_of(c, three.group(0, {Axis::tp})).in_domain());
  CHECK(link_of(c, three, {Axis::tp}).domains == 2);
  CHECK(link_of(c, three, {Axis::tp}).per_domain == 1);
}

TEST_CASE("the page of cluster files has every field, with its help") {
  const std::string page = read_file(MTRAIN_SOURCE_DIR "/docs/cluster-files.md");
  recipe::ClusterConfig config;
  for (const auto& row : recipe::section_rows(config)) {
    if (!row.ops) continue;
    INFO(row.path);
    CHECK(page.find(fmt::format("| `{}` |", row.path)) != std::string::npos);
    CHECK(page.find(std::string(row.help)) != std::string::npos);
  }
}

}  // namespace plan_cluster_test
