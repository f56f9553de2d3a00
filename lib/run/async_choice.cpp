#include "run/async_choice.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/host_memory.h"
#include "base/strings.h"
#include "interchange/export.h"

namespace mtrain::run {

namespace {

std::string need_of(const HostNeed& h) {
  std::string text = fmt::format("a copy in host memory takes {}{}", human_bytes(double(h.needs)),
                                 h.ranks == 1 ? "" : fmt::format(" for {} ranks", h.ranks));
  if (h.comes > 0)
    text += fmt::format(", and training{} another {}",
                        h.writes_form ? " with the Hugging Face form of a checkpoint" : "",
                        human_bytes(double(h.comes)));
  return text + fmt::format("; {} has {} left, of which a tenth stays free", h.host,
                            human_bytes(double(h.available)));
}

}  // namespace

std::string form_text(int64_t ranks) {
  return fmt::format(", and the Hugging Face form of a checkpoint another {} while it is written",
                     human_bytes(double(ranks * interchange::kConsolidatedMemory)));
}

AsyncChoice choose_async(plan::CheckpointOptions::Async asked, const std::vector<HostNeed>& hosts) {
  using Async = plan::CheckpointOptions::Async;
  if (asked == Async::off) return {false, "training waits (checkpoint.async: false)"};
  const auto scarce = std::ranges::find_if(hosts, [](const HostNeed& h) { return !h.suffices(); });
  if (scarce == hosts.end()) {
    const auto most = std::ranges::max_element(hosts, {}, &HostNeed::needs);
    return {true, fmt::format("training continues; a copy takes {} of host memory{}{}",
                              human_bytes(double(most->needs)),
                              most->ranks == 1 ? "" : fmt::format(" for {} ranks", most->ranks),
                              most->writes_form ? form_text(most->ranks) : "")};
  }
  if (asked == Async::on)
    throw UserError(fmt::format("checkpoint.async: {}", need_of(*scarce)),
                    "set checkpoint.async: auto or false, use fewer ranks on a host, or allow the "
                    "job more memory");
  return {false, fmt::format("training waits: {} (checkpoint.async: auto)", need_of(*scarce))};
}

AsyncChoice choose_async(const comm::HostCollectives& control, const plan::CheckpointOptions& asked,
                         int64_t staged, int64_t comes) {
  if (!asked.saves_during_training()) return {};
  const auto all = control.texts(
      fmt::format("{} {} {} {}", staged, comes, available_host_memory(), host_name()));
  const bool form = asked.consolidated == plan::CheckpointOptions::Consolidated::every;
  std::vector<HostNeed> hosts;
  for (const std::string& text : all) {
    std::istringstream in(text);
    HostNeed rank{.host = {}, .ranks = 1, .writes_form = form};
    in >> rank.needs >> rank.comes >> rank.available >> rank.host;
    if (form) rank.comes += interchange::kConsolidatedMemory;
    const auto known = std::ranges::find(hosts, rank.host, &HostNeed::host);
    if (known == hosts.end()) {
      hosts.push_back(rank);
      continue;
    }
    ++known->ranks;
    known->needs += rank.needs;
    known->comes += rank.comes;
    // Each rank may have a control group of its own.
    if (rank.available >= 0)
      known->available =
          known->available < 0 ? rank.available : std::min(known->available, rank.available);
  }
  return choose_async(asked.async, hosts);
}

}  // namespace mtrain::run
