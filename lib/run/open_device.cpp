#include "run/open_device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/usable_cores.h"
#include "launch/job_token.h"
#include "launch/numa_binding.h"

namespace mtrain::run {

namespace {

// Returns this rank's share of the cores that the process may use. All ranks of the host share
// them, unless the launcher has bound each rank to its own.
int default_threads(const launch::Job& job) {
  return launch::threads_if_bound().value_or(std::max(1, usable_cores() / job.local_size));
}

}  // namespace

std::unique_ptr<Device> open_device(const plan::DevicePlan& plan, const launch::Job& job) {
  const int threads = plan.threads ? int(plan.threads) : default_threads(job);
  return Device::open(plan.kind, threads, job.local_rank,
                      {.stream_sanitizer = plan.stream_sanitizer,
                       .compute_slowdown = plan.compute_slowdown,
                       .norm_sm_margin = plan.norm_sm_margin,
                       .gemm_sm_margin = plan.gemm_sm_margin,
                       .dependent_launch = plan.dependent_launch,
                       .fixed_attention_order = plan.deterministic,
                       .own_attention = plan.own_attention,
                       .own_grouped_gemm = plan.own_grouped_gemm,
                       .nvtx = plan.nvtx});
}

comm::TokenSource token_source(const launch::Job& job, const std::filesystem::path& shared) {
  const auto token = std::make_shared<launch::JobToken>(job, shared);
  return {.find = [token] { return token->find(); },
          .may_change = token->is_shared(),
          .hint = launch::JobToken::hint(),
          .keep = token};
}

std::filesystem::path token_file_beside(const std::filesystem::path& model,
                                        const launch::Job& job) {
  std::error_code error;
  const auto folder = std::filesystem::is_directory(model, error) ? model : model.parent_path();
  return folder / fmt::format(".token-{}", job.master_port);
}

comm::World open_world(const plan::MeetingPlan& plan, const launch::Job& job,
                       comm::TokenSource token, std::function<void(const std::string&)> waiting) {
  const plan::CommOptions& comm = plan.comm;
  return comm::process_world({.rank = job.rank,
                              .size = job.size,
                              .local_size = job.local_size,
                              .restarts = job.restarts,
                              .job = job.name,
                              .served = job.served,
                              .served_at = job.served_at,
                              .master_addr = job.master_addr,
                              .master_port = job.master_port,
                              .token = std::move(token),
                              .timeout = std::chrono::duration<double>(comm.timeout_s),
                              .backend = comm.backend,
                              .device = plan.device.kind,
                              .device_number = job.local_rank,
                              .link = {comm.link_latency_us, comm.link_gbps, comm.link_streams},
                              .recipe = plan.recipe,
                              .waiting = std::move(waiting)});
}

}  // namespace mtrain::run
