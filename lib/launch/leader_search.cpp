#include "launch/leader_search.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kFirstAnswer = 10s;  // of etcd
constexpr auto kQuietSearch = 5s;   // before a line says what is awaited
constexpr auto kSameLeader = 15s;   // a leader that was lost is tried again after this time
constexpr auto kOldHosts = 25s;     // hosts that have trained in this job come first
constexpr auto kSameToken = 15s;    // the token's file may still be that of an earlier leader
constexpr auto kWithRanks = 3s;     // hosts with ranks come before spare ones

double seconds_of(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

bool is_loopback_address(const std::string& address) {
  return address == "::1" || address.starts_with("127.") || address.starts_with("::ffff:127.");
}

}  // namespace

std::chrono::milliseconds search_pause(int looks) {
  constexpr std::chrono::duration<double, std::milli> kFirst = 300ms, kLongest = 2s;
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto full = std::min(kLongest, kFirst * std::pow(1.2, looks));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      full * std::uniform_real_distribution<>(0.7, 1.0)(random));
}

LeaderSearch::LeaderSearch(const AgentOptions& o, JobState& job,
                           std::function<Clock::time_point()> now)
    : o_(o), job_(job), now_(std::move(now)), election_(*o.etcd, o.run_id, job.id) {}

std::chrono::steady_clock::duration LeaderSearch::waited() const {
  return since_ ? now_() - *since_ : Clock::duration(0);
}

void LeaderSearch::answered() {
  has_answered_ = has_joined_ = true;
  since_.reset();
  is_guess_ = false;
  unanswered_.clear();
}

void LeaderSearch::lost() {
  lost_ = leader_.id;
  lost_at_ = now_();
  is_dead_ = false;
  if (!std::exchange(has_answered_, false) && !is_guess_)
    unanswered_ =
        fmt::format("host {} ({}), whose launcher leads the job, does not answer at {}:{}",
                    leader_.node, leader_.host, leader_.address, leader_.port);
  if (!since_) is_told_ = false;
  is_guess_ = false;
  job_.store.leave();
}

// The facts that etcd has may vanish with the leader.
void LeaderSearch::remember(const LauncherNews& round, bool has_ranks) {
  has_ranks_ = has_ranks;
  known_ = RoundFacts{.leader = leader_.id,
                      .leader_host = leader_.host,
                      .leader_node = leader_.node,
                      .job = round.job,
                      .round = round.round,
                      .members = round.members,
                      .counted_from = round.counted_from,
                      .began_with = round.counted_from,
                      .restarts = std::max(0, o_.max_restarts - round.restarts_left)};
}

void LeaderSearch::finish(int code) {
  election_.finish(code, known_.value_or(RoundFacts{.job = job_.job_id()}));
}

std::optional<LeaderSearch::Found> LeaderSearch::look() {
  if (!since_) since_ = now_();
  awaited_ = o_.is_elastic() ? "no launcher leads the job"
                             : "no launcher of host 0, which leads the job, has started";
  std::optional<Found> found;
  try {
    found = look_at_etcd();
    has_reached_ = true;
    if (!unanswered_.empty()) awaited_ = unanswered_;
  } catch (const CommError& e) {
    if (!has_reached_ && waited() >= std::min<Clock::duration>(kFirstAnswer, o_.rendezvous_timeout))
      throw CommError(e.message(),
                      "--rdzv_endpoint names etcd's address for clients; check it by  "
                      "curl http://HOST:2379/version");
    awaited_ = e.message();
  }
  if (!found)
    check_time();
  else if (!found->leads && !found->over && !unanswered_.empty())
    give_up();
  return found;
}

// Ends the search when its time has passed.
void LeaderSearch::give_up() const {
  if (waited() < o_.rendezvous_timeout) return;
  const char* const reach =
      "all hosts must reach each other; --local_addr sets the address at which a host is reached";
  throw CommError(
      fmt::format("{}, after {:.3g} s", awaited_, seconds_of(o_.rendezvous_timeout)),
      awaited_ == unanswered_ ? reach : "--rdzv_timeout sets how long a launcher waits");
}

// Says what is awaited, and ends the search when its time has passed.
void LeaderSearch::check_time() {
  give_up();
  if (waited() < kQuietSearch || is_told_) return;
  is_told_ = true;
  job_.console.say(fmt::format("mtrain-launch: waiting: {} ({:.3g} s)", awaited_,
                               seconds_of(o_.rendezvous_timeout)));
}

std::optional<LeaderSearch::Found> LeaderSearch::look_at_etcd() {
  auto leader = election_.leader();
  if (!leader || leader->id != lost_) unanswered_.clear();
  if (leader && leader->id == lost_ && is_dead_ && election_.depose(lost_)) leader.reset();
  if (!leader) return try_to_lead();
  if (!may_follow(*leader)) return std::nullopt;
  leader_ = *leader;
  return Found{};
}

bool LeaderSearch::may_follow(const LeaderRecord& leader) {
  // The own record is one that could not be withdrawn; it expires.
  if (leader.port == 0 || leader.id == job_.id) return false;
  if (leader.id == lost_ && now_() - lost_at_ < kSameLeader) return false;
  job_.store.follow(leader.address, leader.port);
  if (job_.store.fingerprint() == leader.job_token) {
    other_token_since_.reset();
    return true;
  }
  if (!other_token_since_) other_token_since_ = now_();
  if (job_.store.token_may_change() && now_() - *other_token_since_ < kSameToken) return false;
  throw UserError(
      fmt::format("the job `{}` that host {} ({}) leads has a different token from this launcher",
                  o_.run_id, leader.node, leader.host),
      job_.store.token_may_change()
          ? "if it is another job, choose another --rdzv_id; else all hosts need the same "
            "train.run_dir, or the same --token_file"
          : "if it is another job, choose another --rdzv_id; else all hosts need the same "
            "--token_file");
}

// Without a token of the user each leader makes another one.
bool LeaderSearch::is_of_job(const RoundFacts& facts) const {
  if (known_) return facts.job == known_->job;
  return job_.store.token_may_change() || facts.job_token == job_.store.fingerprint();
}

// A leader that etcd does not hear may still lead a round.
std::optional<LeaderSearch::Found> LeaderSearch::follow_last(const RoundFacts& facts) {
  if (facts.leader_port == 0 || facts.leader == job_.id || facts.leader == guessed_)
    return std::nullopt;
  guessed_ = facts.leader;
  is_guess_ = true;
  leader_ = {.id = facts.leader,
             .host = facts.leader_host,
             .node = facts.leader_node,
             .address = facts.leader_address,
             .port = facts.leader_port,
             .job_token = facts.job_token};
  job_.store.follow(leader_.address, leader_.port);
  return Found{};
}

std::string LeaderSearch::own_address() {
  if (!o_.etcd->own_address.empty()) return o_.etcd->own_address;
  const std::string address = election_.own_address();
  if (address.empty())
    throw RunError("this host has no address that other hosts can reach", "give one: --local_addr");
  if (is_loopback_address(address) && !std::exchange(is_warned_, true))
    job_.console.say(
        fmt::format("mtrain-launch: warning: other hosts cannot reach this one at {}, the address "
                    "by which it reaches etcd\n  hint: --local_addr=ADDRESS sets another one; "
                    "--local_addr=127.0.0.1 if all hosts are this machine",
                    address));
  return address;
}

std::optional<LeaderSearch::Found> LeaderSearch::try_to_lead() {
  // The hosts of a fixed number wait for host 0 if it is lost, as for any other.
  if (!o_.is_elastic() && o_.node != 0) return std::nullopt;
  auto before = election_.facts();
  if (before && !is_of_job(*before)) before.reset();
  if (before && before->over) {
    if (known_ || before->leader == lost_) return Found{.over = before->code};
    before.reset();  // of an earlier job
  }
  if (!before) before = known_;
  const bool is_new = !has_joined_;
  if (before && is_new) {
    if (auto found = follow_last(*before)) return found;
    if (waited() < kOldHosts) return std::nullopt;
    if (o_.run_folder_held && o_.run_folder_held()) {
      awaited_ = "no launcher leads the job, but ranks still use its run folder";
      return std::nullopt;
    }
  }
  if (known_ && !has_ranks_ && waited() < kWithRanks) return std::nullopt;
  LeaderRecord own{.id = job_.id,
                   .host = host_name(),
                   .node = o_.node,
                   .address = own_address(),
                   .port = 0,
                   .job_token = {}};
  if (!election_.campaign(own)) return std::nullopt;
  try {
    job_.store.lead(own.address, /*replaces=*/!is_new);
    own.port = job_.store.port();
    own.job_token = job_.store.fingerprint();
    if (!election_.publish(own)) throw CommError("another launcher leads the job now");
  } catch (const std::exception& e) {
    election_.resign();
    job_.store.leave();
    // The token's file may still be that of a leader that ends now.
    if (const auto* refused = dynamic_cast<const UserError*>(&e); refused && before)
      throw CommError(refused->message());
    throw;
  }
  leader_ = own;
  if (before && is_new) before->leader.clear();
  return Found{.leads = true, .before = std::move(before)};
}

}  // namespace mtrain::launch
