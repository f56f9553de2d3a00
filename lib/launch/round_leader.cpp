#include "launch/round_leader.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongRound = 60s;  // after this time a start counts as successful
constexpr int kUserMistake = 2;   // exit code

}  // namespace

RoundLeader::RoundLeader(LeaderOptions options, const RoundFacts& before)
    : o_(std::move(options)),
      job_(before.job.empty() ? o_.job : before.job),
      round_(before.round),
      members_(before.members),
      proven_(before.proven.begin(), before.proven.end()),
      restarts_(o_.max_restarts),
      continues_(true) {
  restarts_.begin_with(before);
  if (before.leader.empty()) {  // nothing is lost
    ++round_;
    members_.clear();
    return;
  }
  for (const RoundMember& m : members_)
    if (m.id != before.leader) awaited_.insert(m.id);
  RoundCause cause{.weight = 0, .rank = {}, .host = before.leader_host, .message = {}, .text = {}};
  cause.message = fmt::format(
      "host {} ({}) is gone: its launcher, which led the job, has ended, or its "
      "connection has broken",
      before.leader_node, before.leader_host);
  cause.text = line_of("error: " + cause.message);
  inherited_ = std::move(cause);
}

std::vector<LauncherNews> RoundLeader::look(const std::map<std::string, SeenLauncher>& launchers,
                                            Clock::time_point now) {
  if (last_look_) time_ += std::min<Clock::duration>(now - *last_look_, kLongestGap);
  last_look_ = now;
  update(launchers, time_);
  if (phase_ != Phase::over && o_.leads && !o_.leads()) abandon();
  refuse_doubles();
  pass_on_signals();
  if (inherited_) decide(*std::exchange(inherited_, std::nullopt), time_);
  switch (phase_) {
    case Phase::gathering: gather(time_); break;
    case Phase::running: watch(time_); break;
    case Phase::ending: await_end(time_); break;
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
  // The store forgets those that left long ago.
  for (auto& [key, l] : launchers_) l.lost = l.lost || !launchers.contains(key);
  std::erase_if(launchers_, [&](const auto& entry) {
    const auto& [key, l] = entry;
    return !launchers.contains(key) && !has_place(l) && std::ranges::count(failed_, key) == 0;
  });
}

void RoundLeader::refuse(Launcher& l, int code, const std::string& why, const char* hint) {
  l.refused = true;
  announce({.kind = LauncherNews::Kind::refuse,
            .code = code,
            .id = l.note.id,
            .lines = {line_of(fmt::format("error: {} cannot join: {}\n  hint: {}",
                                          host_text(l.note), why, hint))}});
}

// Refuses a launcher whose number another one has, in this round or earlier, and one whose number
// is too large.
void RoundLeader::refuse_doubles() {
  const auto comes_before = [&](const auto& a, const auto& b) {
    const bool place = has_place(a.second);
    if (place != has_place(b.second)) return place;
    return a.second.since != b.second.since ? a.second.since < b.second.since : a.first < b.first;
  };
  for (auto& entry : launchers_) {
    Launcher& l = entry.second;
    if (l.refused || l.lost) continue;
    if (!o_.elastic() && l.note.node >= o_.max_nodes) {
      refuse(l, kUserMistake, fmt::format("the job has {} hosts", o_.max_nodes),
             "start all hosts with the same --nnodes, and number them from 0");
      continue;
    }
    const bool second = std::ranges::any_of(launchers_, [&](const auto& other) {
      const Launcher& o = other.second;
      return !o.refused && !o.lost && o.note.node == l.note.node && comes_before(other, entry);
    });
    // The earlier one may be dead, which takes kReconnect to notice.
    if (second && l.changed - l.since >= kReconnect)
      refuse(l, kUserMistake, fmt::format("another launcher has --node_rank={}", l.note.node),
             "start each host with its own number");
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
  if (!o_.elastic()) return has_place(l);
  return std::ranges::any_of(
      members_, [&](const RoundMember& m) { return m.ranks > 0 && m.id == l.note.id; });
}

// Whether the launcher has ranks in this round, or is a spare.
bool RoundLeader::has_place(const Launcher& l) const {
  if (o_.elastic())
    return std::ranges::any_of(members_, [&](const RoundMember& m) { return m.id == l.note.id; });
  const auto found = admitted_.find(l.note.node);
  return found != admitted_.end() && found->second == l.note.id;
}

// Hosts of a fixed number begin the round as they come. The first launcher of each number has its
// place until the round ends.
void RoundLeader::admit() {
  std::vector<const Launcher*> waiting;
  for (const auto& [key, l] : launchers_)
    if (!l.lost && !l.refused && l.note.node < o_.max_nodes && !admitted_.contains(l.note.node))
      waiting.push_back(&l);
  std::ranges::stable_sort(waiting, {}, &Launcher::since);
  for (const Launcher* l : waiting) {
    if (!admitted_.emplace(l->note.node, l->note.id).second) continue;
    LauncherNews news = start_news();
    news.id = l->note.id;
    announce(std::move(news));
  }
}

LauncherNews RoundLeader::start_news() const {
  return {.kind = LauncherNews::Kind::run,
          .round = round_,
          .restarts_left = restarts_.left(),
          .id = {},
          .job = job_,
          .counted_from = restarts_.counted_from(),
          .cause = {},
          .lines = {}};
}

std::vector<LauncherNote> RoundLeader::alive() const {
  std::vector<LauncherNote> notes;
  for (const auto& [key, l] : launchers_)
    if (!l.lost && !l.refused && !changes_.leaves_out(l.note.id)) notes.push_back(l.note);
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
  if (!o_.elastic()) {
    if (has_settled(now)) begin_round({}, now);
    return;
  }
  if (!gathers_since_) gathers_since_ = now;
  std::vector<LauncherNote> hosts = alive();
  std::vector<RoundMember> members = members_of_round(hosts, o_);
  if (members.empty() && changes_.use_slow_hosts()) {  // a slow host is better than none
    hosts = alive();
    members = members_of_round(hosts, o_);
  }
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
  if (!is_complete(hosts, now)) return;
  members_ = std::move(members);
  if (has_settled(now)) begin_round(members_, now);
}

// Whether the round need not wait for more hosts. After a failure the hosts that are left are
// known, unless this launcher has just become the leader.
bool RoundLeader::is_complete(const std::vector<LauncherNote>& hosts, Clock::time_point now) const {
  const auto waited = now - *enough_since_;
  if (int(hosts.size()) >= o_.max_nodes) return true;
  if (!has_begun_ && awaited_.empty()) return waited >= kLastCall;
  const auto here =
      std::ranges::count_if(hosts, [&](const LauncherNote& h) { return awaited_.contains(h.id); });
  return here == std::ssize(awaited_) || waited >= kLease;
}

RoundFacts RoundLeader::facts() const {
  RoundFacts facts{.leader = {},
                   .leader_host = {},
                   .leader_node = o_.leader,
                   .job = job_,
                   .round = round_,
                   .members = members_,
                   .began_with = {},
                   .proven = {proven_.begin(), proven_.end()}};
  restarts_.write(facts, o_.newest_checkpoint());
  return facts;
}

// Returns whether the round is recorded, and may begin.
bool RoundLeader::has_settled(Clock::time_point now) {
  if (waits_for_folder(now)) return false;
  if (!o_.settle || o_.settle(facts())) {
    unsettled_since_.reset();
    return true;
  }
  if (o_.leads && !o_.leads()) return false;  // the next look sees it
  if (!unsettled_since_) {
    unsettled_since_ = now;
    announce(
        {.kind = LauncherNews::Kind::cause,
         .round = round_,
         .lines = {line_of(fmt::format("the next start waits: {} ({:.3g} s)", o_.settle_fault(),
                                       std::chrono::duration<double>(o_.timeout).count()))}});
  }
  if (now - *unsettled_since_ >= o_.timeout)
    give_up(1, {line_of(fmt::format("error: no start is possible after {:.3g} s: {}\n  hint: "
                                    "--rdzv_timeout sets how long a start waits for it",
                                    std::chrono::duration<double>(o_.timeout).count(),
                                    o_.settle_fault()))});
  return false;
}

// Ranks of the leader before may train on until they notice that it is gone. New ones would be
// refused meanwhile.
bool RoundLeader::waits_for_folder(Clock::time_point now) {
  if (!continues_ || has_begun_ || !o_.folder_held) return false;
  if (folder_held_since_ && now - *folder_held_since_ >= kFolderWait) return false;
  if (!o_.folder_held()) return false;
  if (!folder_held_since_) {
    folder_held_since_ = now;
    announce({.kind = LauncherNews::Kind::cause,
              .round = round_,
              .lines = {line_of(fmt::format(
                  "the next start waits: ranks of an earlier start still use the run folder ({} s)",
                  kFolderWait.count()))}});
  }
  return true;
}

// Another launcher leads: its round must not meet this one.
void RoundLeader::abandon() {
  phase_ = Phase::over;
  announce({.kind = LauncherNews::Kind::kill,
            .round = round_,
            .lines = {line_of("another launcher leads the job now: these ranks end")}});
}

void RoundLeader::begin_round(std::vector<RoundMember> members, Clock::time_point now) {
  members_ = std::move(members);
  restarts_.begin_round(round_, o_.newest_checkpoint());
  changes_.begin_round();
  phase_ = Phase::running;
  round_began_ = now;
  failed_.clear();
  gone_.clear();
  told_to_wait_ = false;
  gathers_since_.reset();
  enough_since_.reset();
  admitted_.clear();
  awaited_.clear();
  has_begun_ = true;
  if (!o_.elastic()) return admit();
  announce_start();
}

void RoundLeader::announce_start() {
  world_ = 0;
  std::vector<int> nodes, spares;
  int all = 0;
  for (const RoundMember& m : members_) {
    world_ += m.ranks;
    (m.ranks > 0 ? nodes : spares).push_back(m.node);
  }
  for (const LauncherNote& h : alive()) all += h.ranks;
  LauncherNews news = start_news();
  news.members = members_;
  news.world = world_;
  news.lines = {
      line_of(fmt::format("start {}: {} ranks on host{} {}, {}{}", round_, world_,
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
    if (ended ? l.note.well : !failed && !l.lost) continue;
    failed_.push_back(key);
    if (l.lost && !(ended || failed)) gone_.insert(key);
  }
}

void RoundLeader::watch(Clock::time_point now) {
  if (!o_.elastic()) admit();
  record_failures();
  if (!failed_.empty()) return end_round(LauncherNews::Kind::end, {}, now);
  int done = 0;
  for (const auto& [key, l] : launchers_)
    done += is_member(l) && l.note.round == round_ && l.note.state == LauncherNote::State::ended &&
            l.note.well;
  const auto needed =
      !o_.elastic()
          ? o_.max_nodes
          : std::ranges::count_if(members_, [](const RoundMember& m) { return m.ranks > 0; });
  if (done >= needed) return give_up(0, {});
  if (o_.elastic() && signal_ == 0) look_for_changes(now);
}

void RoundLeader::look_for_changes(Clock::time_point now) {
  std::vector<int> slow;
  for (const auto& [key, l] : launchers_)
    if (is_member(l) && l.note.round == round_ && l.note.straggler)
      slow.push_back(*l.note.straggler);
  const PlannedChanges::Round round{
      .options = o_, .members = members_, .world = world_, .slow = slow, .hosts = [this] {
        return alive();
      }};
  for (const std::string& text : changes_.look(round))
    announce({.kind = LauncherNews::Kind::cause, .round = round_, .lines = {line_of(text)}});
  if (changes_.are_due()) end_round(LauncherNews::Kind::kill, {}, now);
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
  if (!changes_.are_due()) return decide(first_cause(), now);
  // A failure at the same time does not matter: all ranks begin again.
  record_proven(now);
  begin_again(0s, now);
}

void RoundLeader::begin_again(std::chrono::milliseconds delay, Clock::time_point now) {
  not_before_ = now + delay;
  ++round_;
  phase_ = Phase::gathering;
}

RoundCause RoundLeader::loss_of(const Launcher& l) const {
  RoundCause cause{.weight = 0, .rank = {}, .host = l.note.host, .message = {}, .text = {}};
  cause.message =
      host_text(l.note) + " is gone: its launcher has ended, or its connection has broken";
  cause.text = line_of("error: " + cause.message);
  for (const auto& [other, o] : launchers_)
    if (o.note.round == round_ && o.note.cause)
      cause.step = std::max(cause.step, o.note.cause->step);
  return cause;
}

RoundCause RoundLeader::first_cause() const {
  std::optional<RoundCause> first;
  for (const std::string& key : failed_) {
    const Launcher& l = launchers_.at(key);
    const bool gone = gone_.contains(key), reports = l.note.round == round_ && l.note.cause;
    RoundCause cause;
    // What a host that came back reports is most often the loss of its peers.
    if (reports && (!gone || l.note.cause->weight == 0))
      cause = *l.note.cause;
    else if (gone || l.lost)
      cause = loss_of(l);
    if (!first || cause.weight < first->weight) first = std::move(cause);
  }
  return first.value_or(RoundCause());
}

// Records the hosts of a round that has trained: it was long, or has saved a checkpoint.
void RoundLeader::record_proven(Clock::time_point now) {
  if (!restarts_.has_saved(o_.newest_checkpoint()) && now - round_began_ < kLongRound) return;
  for (const RoundMember& m : members_)
    if (m.ranks > 0) proven_.insert(m.id);
}

// A rank that dies may have been killed from outside: a host is at fault if that happens again.
bool RoundLeader::is_at_fault(const Launcher& l, const RoundCause& cause) {
  if (cause.exit_code == kUserMistake) return true;
  const bool is_own =
      cause.rank && l.note.cause && l.note.round == round_ && l.note.cause->rank == cause.rank;
  return is_own && (cause.weight > 0 || !excused_.insert(l.note.id).second);
}

// Returns the hosts that have joined a job, are at fault, and are not needed. Before they joined
// the same recipe and the same data have worked: a user's mistake is theirs, whoever reports it.
std::vector<RoundLeader::Launcher*> RoundLeader::newcomers_at_fault(const RoundCause& cause) {
  std::vector<Launcher*> found;
  std::vector<LauncherNote> others;
  bool any_proven = false;
  for (auto& [key, l] : launchers_) {
    if (l.lost || l.refused) continue;
    const bool proven = proven_.contains(l.note.id);
    any_proven = any_proven || proven;
    if (!proven && is_member(l) && is_at_fault(l, cause))
      found.push_back(&l);
    else
      others.push_back(l.note);
  }
  std::ranges::stable_sort(others, {}, &LauncherNote::node);
  if (!o_.elastic() || !any_proven || signal_ != 0 || members_of_round(others, o_).empty())
    found.clear();
  return found;
}

void RoundLeader::decide(RoundCause cause, Clock::time_point now) {
  LauncherNews news{.kind = LauncherNews::Kind::cause, .round = round_};
  if (!cause.text.empty()) news.lines = {cause.text};
  record_proven(now);
  const std::vector<Launcher*> newcomers = newcomers_at_fault(cause);
  // Input that worked at the first start is not a user's mistake at a later one.
  if (cause.exit_code == kUserMistake && round_ > 0) cause.exit_code = 1;
  last_code_ = cause.exit_code;
  news.cause = cause;
  if (!newcomers.empty()) {
    for (Launcher* l : newcomers) {
      refuse(*l, 1, cause.message, "repair this host, and start its launcher again");
      news.lines.push_back(
          line_of(host_text(l->note) + " is refused: the job continues without it"));
    }
    news.restarts = true;
    announce(std::move(news));
    return begin_again(0s, now);
  }
  const bool is_final = signal_ != 0 || cause.exit_code == kUserMistake;
  if (const auto why = is_final ? std::optional<std::string>("")
                                : restarts_.why_none(cause, o_.newest_checkpoint())) {
    announce(std::move(news));
    const bool ended = signal_ != 0 && (killed_ || cause.interrupted);
    return give_up(ended ? 128 + signal_ : cause.exit_code,
                   why->empty() ? std::vector<std::string>() : std::vector{*why});
  }
  const auto delay = restarts_.count(now - round_began_ >= kLongRound);
  news.restarts = true;
  news.delay_s = std::chrono::duration<double>(delay).count();
  news.lines.push_back(
      line_of(fmt::format("restarting all ranks ({} of {}{}) {}", restarts_.made(),
                          restarts_.most(), o_.elastic() ? " without a new checkpoint" : "",
                          news.delay_s > 0 ? fmt::format("in {:.3g} s", news.delay_s) : "now")));
  announce(std::move(news));
  begin_again(delay, now);
}

void RoundLeader::give_up(int code, std::vector<std::string> lines) {
  phase_ = Phase::over;
  announce(
      {.kind = LauncherNews::Kind::over, .round = round_, .code = code, .lines = std::move(lines)});
}

void RoundLeader::announce(LauncherNews news) { news_.push_back(std::move(news)); }

}  // namespace mtrain::launch
