#include "launch/round_leader.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launch/agent.h"
#include "launch/end_signals.h"

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongRound = 60s;  // after this time a start counts as successful

// Process numbers and times differ between two failures that are alike.
std::string without_digits(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c); });
  return text;
}

bool are_alike(const RoundCause& a, const RoundCause& b) {
  return a.rank && a.rank == b.rank && a.step > 0 && a.step == b.step &&
         without_digits(a.message) == without_digits(b.message);
}

std::string host_text(const LauncherNote& n) { return fmt::format("host {} ({})", n.node, n.host); }

std::string line_of(const std::string& text) { return "mtrain-launch: " + text; }

}  // namespace

std::vector<RoundMember> members_of_round(const std::vector<LauncherNote>& hosts,
                                          const LeaderOptions& options) {
  // Host 0 serves the store, and rank 0 is there.
  if (hosts.empty() || hosts.front().node != 0 || int(hosts.size()) < options.min_nodes) return {};
  int ranks = 0;
  for (const LauncherNote& h : hosts) ranks += h.ranks;
  int left = options.largest_world(ranks);
  if (left <= 0) return {};
  std::vector<RoundMember> members;
  int first = 0;
  for (const LauncherNote& h : hosts) {
    const int own = std::min(left, h.ranks);
    members.push_back({.node = h.node, .id = h.id, .first_rank = first, .ranks = own});
    first += own;
    left -= own;
  }
  return members;
}

std::vector<LauncherNews> RoundLeader::look(const std::map<std::string, SeenLauncher>& launchers,
                                            Clock::time_point now) {
  update(launchers, now);
  refuse_doubles();
  pass_on_signals();
  switch (phase_) {
    case Phase::gathering: gather(now); break;
    case Phase::running: watch(now); break;
    case Phase::ending: await_end(now); break;
    case Phase::over: break;
  }
  return std::exchange(news_, {});
}

void RoundLeader::update(const std::map<std::string, SeenLauncher>& launchers,
                         Clock::time_point now) {
  for (const auto& [key, seen] : launchers) {
    const auto [at, is_new] = launchers_.try_emplace(key);
    Launcher& l = at->second;
    if (is_new) l.since = now;
    if (is_new || l.note.beat != seen.note.beat) l.changed = now;
    if (is_new || seen.connected) l.connected = now;
    l.note = seen.note;
    // A launcher that was slow has heard that its round has ended, and waits for another one.
    l.lost = now - l.changed > kLease || now - l.connected > kReconnect;
  }
}

// Refuses a launcher whose number another one has had before.
void RoundLeader::refuse_doubles() {
  for (auto& [key, l] : launchers_) {
    if (l.refused || l.lost) continue;
    const bool second = std::ranges::any_of(launchers_, [&](const auto& other) {
      const Launcher& o = other.second;
      return !o.refused && !o.lost && o.note.node == l.note.node &&
             (o.since < l.since || (o.since == l.since && other.first < key));
    });
    // The earlier one may be dead, which takes kReconnect to notice.
    if (!second || l.changed - l.since < kReconnect) continue;
    l.refused = true;
    announce({.kind = LauncherNews::Kind::refuse,
              .id = l.note.id,
              .lines = {line_of(fmt::format("error: another launcher has --node_rank={}: {} cannot "
                                            "join\n  hint: start each host with its own number",
                                            l.note.node, l.note.host))}});
  }
}

void RoundLeader::pass_on_signals() {
  for (const auto& [key, l] : launchers_) {
    if (l.note.signal == 0 || l.refused) continue;
    if (signal_ == 0) {
      signal_ = l.note.signal;
      announce({.kind = LauncherNews::Kind::signal,
                .round = round_,
                .signal = signal_,
                .id = l.note.id,
                .lines = {}});
    }
    if (l.note.second && !std::exchange(killed_, true))
      announce({.kind = LauncherNews::Kind::kill, .round = round_});
  }
}

bool RoundLeader::is_member(const Launcher& l) const {
  // Without a list each host knows its own ranks, and any may belong to the round.
  if (members_.empty()) return !l.refused && l.note.round == round_;
  return std::ranges::any_of(members_, [&](const RoundMember& m) {
    return m.ranks > 0 && m.node == l.note.node && m.id == l.note.id;
  });
}

std::vector<LauncherNote> RoundLeader::alive() const {
  std::vector<LauncherNote> notes;
  for (const auto& [key, l] : launchers_)
    if (!l.lost && !l.refused) notes.push_back(l.note);
  std::ranges::stable_sort(notes, {}, &LauncherNote::node);
  // The second one of a number is about to be refused, or the first one about to be lost.
  const auto same = std::ranges::unique(notes, {}, &LauncherNote::node);
  notes.erase(same.begin(), same.end());
  return notes;
}

void RoundLeader::gather(Clock::time_point now) {
  if (signal_ != 0)
    return give_up(last_code_ ? last_code_ : 128 + signal_,
                   {line_of(round_ > 0 ? "the job got a signal to end: the ranks are not restarted"
                                       : "the job got a signal to end before its first start")});
  if (now < not_before_) return;
  if (!o_.elastic()) return begin_round({}, now);
  if (!gathers_since_) gathers_since_ = now;
  const std::vector<LauncherNote> hosts = alive();
  std::vector<RoundMember> members = members_of_round(hosts, o_);
  if (members.empty()) {
    enough_since_.reset();
    int ranks = 0;
    for (const LauncherNote& h : hosts) ranks += h.ranks;
    const std::string why = fmt::format(
        "{} of {} to {} hosts are here, with {} ranks{}", hosts.size(), o_.min_nodes, o_.max_nodes,
        ranks, int(hosts.size()) < o_.min_nodes ? "" : "; " + o_.nearest_worlds(ranks));
    if (now - *gathers_since_ >= o_.timeout)
      return give_up(
          1,
          {line_of(fmt::format("error: no start is possible after {:.3g} s: {}\n  hint: start more "
                               "hosts; --rdzv_timeout sets how long the job waits for them",
                               std::chrono::duration<double>(o_.timeout).count(), why))});
    if (now - *gathers_since_ >= kLastCall && !std::exchange(told_to_wait_, true))
      announce({.kind = LauncherNews::Kind::cause,
                .round = round_,
                .lines = {line_of("waiting for hosts: " + why)}});
    return;
  }
  if (!enough_since_) enough_since_ = now;
  // After a failure the hosts that are left are known.
  const bool complete = int(hosts.size()) >= o_.max_nodes || round_ > 0;
  if (complete || now - *enough_since_ >= kLastCall) begin_round(std::move(members), now);
}

void RoundLeader::begin_round(std::vector<RoundMember> members, Clock::time_point now) {
  members_ = std::move(members);
  world_ = 0;
  std::vector<int> nodes, spares;
  int all = 0;
  for (const RoundMember& m : members_) {
    world_ += m.ranks;
    (m.ranks > 0 ? nodes : spares).push_back(m.node);
  }
  for (const LauncherNote& h : alive()) all += h.ranks;
  if (round_ == 0) counted_from_ = o_.newest_checkpoint();
  phase_ = Phase::running;
  round_began_ = now;
  failed_.clear();
  planned_ = told_to_wait_ = false;
  joins_after_.reset();
  gathers_since_.reset();
  enough_since_.reset();
  LauncherNews news{.kind = LauncherNews::Kind::run, .round = round_, .members = members_};
  news.world = world_;
  if (!members_.empty())
    news.lines = {line_of(
        fmt::format("start {}: {} ranks on host{} {}, {}{}", round_, world_,
                    nodes.size() > 1 ? "s" : "", fmt::join(nodes, ", "), o_.layout(world_),
                    all > world_ ? fmt::format("; {} spare ranks wait", all - world_) : ""))};
  announce(std::move(news));
}

void RoundLeader::record_failures() {
  using State = LauncherNote::State;
  for (const auto& [key, l] : launchers_) {
    if (!is_member(l) || std::ranges::count(failed_, key) > 0) continue;
    const bool ended = l.note.round == round_ && l.note.state == State::ended;
    const bool failed = l.note.round == round_ && l.note.state == State::failed;
    // A host whose ranks have ended well has nothing to lose.
    if (ended ? !l.note.well : failed || l.lost) failed_.push_back(key);
  }
}

void RoundLeader::watch(Clock::time_point now) {
  record_failures();
  if (!failed_.empty()) return end_round(LauncherNews::Kind::end, {}, now);
  int done = 0;
  for (const auto& [key, l] : launchers_)
    done += is_member(l) && l.note.round == round_ && l.note.state == LauncherNote::State::ended &&
            l.note.well;
  const auto needed =
      members_.empty()
          ? o_.max_nodes
          : std::ranges::count_if(members_, [](const RoundMember& m) { return m.ranks > 0; });
  if (done >= needed) return give_up(0, {});
  if (o_.elastic() && signal_ == 0) look_for_joiners();
  if (planned_) end_round(LauncherNews::Kind::kill, {}, now);
}

// A host that joins ends the round when nothing is lost: at a new checkpoint.
void RoundLeader::look_for_joiners() {
  const std::vector<LauncherNote> hosts = alive();
  if (int(hosts.size()) > o_.max_nodes) return;
  std::vector<std::string> names;
  for (const LauncherNote& h : hosts)
    if (std::ranges::none_of(members_, [&](const RoundMember& m) { return m.id == h.id; }))
      names.push_back(host_text(h));
  int world = 0;
  if (!names.empty())
    for (const RoundMember& m : members_of_round(hosts, o_)) world += m.ranks;
  if (world <= world_) return joins_after_.reset();
  const int64_t checkpoint = o_.newest_checkpoint();
  if (!joins_after_) {
    joins_after_ = checkpoint;
    announce({.kind = LauncherNews::Kind::cause,
              .round = round_,
              .lines = {line_of(
                  fmt::format("{} will join at the next checkpoint", fmt::join(names, ", ")))}});
  }
  if (checkpoint <= *joins_after_) return;
  planned_ = true;
  announce({.kind = LauncherNews::Kind::cause,
            .round = round_,
            .lines = {line_of(fmt::format("{} join{} after the checkpoint of step {}",
                                          fmt::join(names, ", "), names.size() == 1 ? "s" : "",
                                          checkpoint))}});
}

void RoundLeader::end_round(LauncherNews::Kind how, std::vector<std::string> lines,
                            Clock::time_point now) {
  phase_ = Phase::ending;
  ends_since_ = now;
  announce({.kind = how, .round = round_, .lines = std::move(lines)});
}

bool RoundLeader::is_ready() const {
  return std::ranges::all_of(launchers_, [&](const auto& entry) {
    const Launcher& l = entry.second;
    return l.lost || !is_member(l) ||
           (l.note.round == round_ && l.note.state == LauncherNote::State::ended);
  });
}

void RoundLeader::await_end(Clock::time_point now) {
  record_failures();
  if (!is_ready() && now - ends_since_ < kUntilEnded) return;
  if (!planned_) return decide(first_cause(), now);
  // A failure at the same time does not matter: all ranks begin again.
  ++round_;
  phase_ = Phase::gathering;
  not_before_ = now;
}

RoundCause RoundLeader::first_cause() const {
  std::optional<RoundCause> first;
  for (const std::string& key : failed_) {
    const Launcher& l = launchers_.at(key);
    RoundCause cause;
    if (l.note.round == round_ && l.note.cause) {
      cause = *l.note.cause;
    } else if (l.lost) {
      cause.weight = 0;
      cause.host = l.note.host;
      cause.message =
          host_text(l.note) + " is gone: its launcher has ended, or its connection has broken";
      cause.text = line_of("error: " + cause.message);
    }
    if (!first || cause.weight < first->weight) first = std::move(cause);
  }
  return first.value_or(RoundCause());
}

void RoundLeader::decide(const RoundCause& cause, Clock::time_point now) {
  LauncherNews news{.kind = LauncherNews::Kind::cause, .round = round_, .cause = cause};
  if (!cause.text.empty()) news.lines = {cause.text};
  announce(std::move(news));
  // Input that worked at the first start is not a user's mistake at a later one.
  const int code = cause.exit_code == 2 && round_ > 0 ? 1 : cause.exit_code;
  last_code_ = code;
  if (signal_ != 0) return give_up(killed_ || cause.interrupted ? 128 + signal_ : code, {});
  if (code == 2) return give_up(code, {});
  const int64_t checkpoint = o_.newest_checkpoint();
  if (checkpoint > counted_from_) restarts_ = 0;
  counted_from_ = checkpoint;
  if (restarts_ > 0 && before_ && are_alike(*before_, cause))
    return give_up(
        code,
        {line_of(fmt::format("rank {} has failed twice in the same way at step {}: the ranks are "
                             "not restarted",
                             *cause.rank, cause.step))});
  before_ = cause;
  if (restarts_ >= o_.max_restarts) return give_up(code, {});
  ++restarts_;
  failures_ = now - round_began_ >= kLongRound ? 1 : failures_ + 1;
  const auto delay = restart_delay(failures_);
  const double seconds = std::chrono::duration<double>(delay).count();
  announce({.kind = LauncherNews::Kind::cause,
            .round = round_,
            .lines = {line_of(
                fmt::format("restarting all ranks ({} of {}{}) {}", restarts_, o_.max_restarts,
                            o_.elastic() ? " without a new checkpoint" : "",
                            seconds > 0 ? fmt::format("in {:.3g} s", seconds) : "now"))}});
  not_before_ = now + delay;
  ++round_;
  phase_ = Phase::gathering;
}

void RoundLeader::give_up(int code, std::vector<std::string> lines) {
  phase_ = Phase::over;
  announce(
      {.kind = LauncherNews::Kind::over, .round = round_, .code = code, .lines = std::move(lines)});
}

void RoundLeader::announce(LauncherNews news) { news_.push_back(std::move(news)); }

}  // namespace mtrain::launch
