#include "launch/etcd_election.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kRenewEvery = 1s;  // many attempts fit into a lease
// A leader that has not renewed its lease for this long is not at work, or does not reach etcd.
constexpr auto kNotRenewed = 2s;

}  // namespace

EtcdElection::EtcdElection(const EtcdOptions& options, const std::string& job, std::string id)
    : client_(options),
      id_(std::move(id)),
      leader_key_("/mtrain/" + job + "/leader"),
      rounds_key_("/mtrain/" + job + "/rounds") {}

EtcdElection::~EtcdElection() { resign(); }

std::optional<LeaderRecord> EtcdElection::leader() {
  const auto entry = client_.get(leader_key_);
  return entry ? parse_leader(entry->value) : std::nullopt;
}

std::optional<RoundFacts> EtcdElection::facts() {
  const auto entry = client_.get(rounds_key_);
  return entry ? parse_facts(entry->value) : std::nullopt;
}

// Returns false if another launcher leads.
bool EtcdElection::create_leader() {
  lease_ = client_.grant(int(kLease.count()));
  const bool made = client_.create(leader_key_, text_of(record_), lease_);
  const auto entry = client_.get(leader_key_);
  if (!made) {
    // The answer to an earlier attempt may have been lost.
    const auto record = entry ? parse_leader(entry->value) : std::nullopt;
    if (!record || record->id != id_) {
      client_.revoke(std::exchange(lease_, 0));
      return false;
    }
    lease_ = entry->lease;
  }
  created_ = entry ? entry->created : 0;
  return created_ != 0;
}

bool EtcdElection::campaign(const LeaderRecord& record) {
  resign();
  const std::lock_guard lock(mutex_);
  record_ = record;
  rounds_lease_ = 0;
  facts_.reset();
  if (!create_leader()) return false;
  leads_ = answers_ = true;
  ends_ = false;
  keeper_ = std::thread([this] { keep(); });
  return true;
}

// A launcher that is deposed although it is alive notices that its lease is gone when it renews it,
// or wants to record a round. It leads again unless another one does.
bool EtcdElection::depose(const std::string& id) {
  const auto entry = client_.get(leader_key_);
  const auto record = entry ? parse_leader(entry->value) : std::nullopt;
  if (!record || record->id != id || entry->lease == 0) return false;
  // etcd says how many full seconds are left.
  if (client_.time_to_live(entry->lease) >= kLease - kNotRenewed) return false;
  client_.revoke(entry->lease);
  return true;
}

bool EtcdElection::publish(const LeaderRecord& record) {
  const std::lock_guard lock(mutex_);
  record_ = record;
  return leads_ && client_.put_if(leader_key_, created_, leader_key_, text_of(record_), lease_);
}

void EtcdElection::keep() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRenewEvery, [&] { return ends_; }) && leads_) {
    try {
      renew();
      answers_ = true;
    } catch (const std::exception& e) {  // the next attempt follows; a round that begins reports it
      note_fault(e);
    }
  }
}

// The lease has expired if this launcher was stopped, or if etcd has lost its data. The launcher
// still leads unless another one does.
void EtcdElection::renew() {
  if (!client_.keep_alive(lease_) && !create_leader()) {
    const auto entry = client_.get(leader_key_);
    const auto record = entry ? parse_leader(entry->value) : std::nullopt;
    if (record && record->id != id_) leads_ = false;
    return;
  }
  if (rounds_lease_ != 0 && facts_ && !client_.keep_alive(rounds_lease_)) {
    rounds_lease_ = 0;
    put_facts(*facts_);
  }
}

bool EtcdElection::put_facts(const RoundFacts& facts) {
  if (rounds_lease_ == 0) rounds_lease_ = client_.grant(int(kRoundsLease.count()));
  return client_.put_if(leader_key_, created_, rounds_key_, text_of(facts), rounds_lease_);
}

bool EtcdElection::settle(RoundFacts facts) {
  if (!answers_ || !leads_) return false;  // the keeper tries
  const std::lock_guard lock(mutex_);
  facts.leader = id_;
  facts.leader_host = record_.host;
  facts.leader_address = record_.address;
  facts.leader_port = record_.port;
  facts.job_token = record_.job_token;
  try {
    if (!put_facts(facts)) {
      renew();  // finds out why
      if (!leads_ || !put_facts(facts)) return false;
    }
  } catch (const std::exception& e) {
    note_fault(e);
    return false;
  }
  facts_ = std::move(facts);
  return true;
}

void EtcdElection::note_fault(const std::exception& e) {
  answers_ = false;
  const auto* error = dynamic_cast<const Error*>(&e);
  const std::lock_guard lock(fault_mutex_);
  fault_ = error ? error->message() : e.what();
}

std::string EtcdElection::fault() {
  const std::lock_guard lock(fault_mutex_);
  return fault_.empty() ? fmt::format("etcd at {} does not answer", where()) : fault_;
}

void EtcdElection::finish(int code, RoundFacts last) {
  try {
    const std::lock_guard lock(mutex_);
    if (leads_) {
      if (!facts_) facts_ = std::move(last);
      facts_->leader = id_;
      facts_->over = true;
      facts_->code = code;
      // The old lease would take the key along, and nobody would learn that the job is over.
      const int64_t before = std::exchange(rounds_lease_, client_.grant(int(2 * kLease.count())));
      if (put_facts(*facts_) && before != 0) client_.revoke(before);
    }
  } catch (const std::exception&) {  // what is in etcd expires
  }
  resign();
}

void EtcdElection::resign() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  const bool led = leads_.exchange(false);
  const int64_t lease = std::exchange(lease_, 0);
  if (!led || lease == 0) return;
  try {
    client_.revoke(lease);
  } catch (const std::exception&) {  // it expires
  }
}

}  // namespace mtrain::launch
