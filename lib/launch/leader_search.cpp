#include "launch/leader_search.h"

#include <algorithm>
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

double seconds_of(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

LeaderSearch::LeaderSearch(const AgentOptions& o, JobState& job)
    : o_(o), job_(job), election_(*o.etcd, o.run_id, job.id) {}

std::chrono::steady_clock::duration LeaderSearch::waited() const {
  return since_ ? Clock::now() - *since_ : Clock::duration(0);
}

void LeaderSearch::lost() {
  lost_ = leader_.id;
  since_.reset();
  is_told_ = false;
  job_.store.leave();
}

std::optional<LeaderSearch::Found> LeaderSearch::look() {
  if (!since_) since_ = Clock::now();
  try {
    auto found = look_at_etcd();
    has_reached_ = true;
    if (!found)
      check_time(o_.is_elastic() ? "no launcher leads the job"
                                 : "no launcher of host 0, which leads the job, has started");
    return found;
  } catch (const CommError& e) {
    if (!has_reached_ && waited() >= std::min<Clock::duration>(kFirstAnswer, o_.rendezvous_timeout))
      throw CommError(e.message(),
                      "--rdzv_endpoint names etcd's address for clients; check it by  "
                      "curl http://HOST:2379/version");
    check_time(e.message());
    return std::nullopt;
  }
}

// Says what is awaited, and ends the search when its time has passed.
void LeaderSearch::check_time(const std::string& why) {
  if (waited() >= o_.rendezvous_timeout)
    throw CommError(fmt::format("{}, after {:.3g} s", why, seconds_of(o_.rendezvous_timeout)),
                    "--rdzv_timeout sets how long a launcher waits");
  if (waited() < kQuietSearch || is_told_) return;
  is_told_ = true;
  job_.console.say(
      fmt::format("mtrain-launch: waiting: {} ({:.3g} s)", why, seconds_of(o_.rendezvous_timeout)));
}

std::optional<LeaderSearch::Found> LeaderSearch::look_at_etcd() {
  const auto leader = election_.leader();
  if (!leader) return try_to_lead();
  if (!may_follow(*leader)) return std::nullopt;
  leader_ = *leader;
  return Found{};
}

bool LeaderSearch::may_follow(const LeaderRecord& leader) {
  // The own record is one that could not be withdrawn; it expires.
  if (leader.port == 0 || leader.id == job_.id) return false;
  if (leader.id == lost_ && waited() < kSameLeader) return false;
  job_.store.follow(leader.address, leader.port);
  if (job_.store.fingerprint() == leader.job_token) {
    other_token_since_.reset();
    return true;
  }
  if (!other_token_since_) other_token_since_ = Clock::now();
  if (job_.store.token_may_change() && Clock::now() - *other_token_since_ < kSameToken)
    return false;
  throw UserError(
      fmt::format("the job `{}` that host {} ({}) leads has a different token from this launcher",
                  o_.run_id, leader.node, leader.host),
      job_.store.token_may_change()
          ? "if it is another job, choose another --rdzv_id; else all hosts need the same "
            "train.run_dir, or the same --token_file"
          : "if it is another job, choose another --rdzv_id; else all hosts need the same "
            "--token_file");
}

std::optional<LeaderSearch::Found> LeaderSearch::try_to_lead() {
  // The hosts of a fixed number wait for host 0 if it is lost, as for any other.
  if (!o_.is_elastic() && o_.node != 0) return std::nullopt;
  auto before = election_.facts();
  if (before && before->over) {
    if (before->leader == lost_) return Found{.over = before->code};
    before.reset();  // of an earlier job
  }
  const bool is_new = lost_.empty();
  if (before && is_new && waited() < kOldHosts) return std::nullopt;
  std::string address = o_.etcd->own_address;
  if (address.empty()) address = election_.own_address();
  if (address.empty())
    throw RunError("this host has no address that other hosts can reach", "give one: --local_addr");
  LeaderRecord own{.id = job_.id,
                   .host = host_name(),
                   .node = o_.node,
                   .address = address,
                   .port = 0,
                   .job_token = {}};
  if (!election_.campaign(own)) return std::nullopt;
  try {
    job_.store.lead(address, before.has_value());
    own.port = job_.store.port();
    own.job_token = job_.store.fingerprint();
    if (!election_.publish(own)) throw CommError("another launcher leads the job now");
  } catch (const std::exception&) {
    election_.resign();
    job_.store.leave();
    throw;
  }
  leader_ = own;
  if (before && is_new) before->leader.clear();
  return Found{.leads = true, .before = std::move(before)};
}

}  // namespace mtrain::launch
