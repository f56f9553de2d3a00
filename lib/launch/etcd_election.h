// The election of the launcher that leads a job, and what etcd keeps about the job's rounds. A job
// has the keys /mtrain/<name>/leader and /mtrain/<name>/rounds.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "launch/etcd_client.h"
#include "launch/launcher_notes.h"

namespace mtrain::launch {

class EtcdElection {
 public:
  // A launcher that has not renewed its lease for this long does not lead any more. A restart of
  // etcd does not count: leases begin again.
  static constexpr std::chrono::seconds kLease{10};
  // What is known about the rounds outlives the leader by this time.
  static constexpr std::chrono::seconds kRoundsLease{60};

  // `id`: of this launcher. `job`: the job's name.
  EtcdElection(const EtcdOptions& options, const std::string& job, std::string id);
  ~EtcdElection();  // gives the lead back
  EtcdElection(const EtcdElection&) = delete;
  EtcdElection& operator=(const EtcdElection&) = delete;

  // These throw as EtcdClient does.
  std::optional<LeaderRecord> leader();
  std::optional<RoundFacts> facts();
  // Tries once to become the leader. Returns false if another launcher leads.
  bool campaign(const LeaderRecord& record);
  // Ends the lead of the launcher `id`, whose process seems to have ended: sooner than its lease
  // expires, and with the same effect. Returns false if it does not lead, or still renews its
  // lease.
  bool depose(const std::string& id);
  // Changes the own record. Returns false if this launcher does not lead any more.
  bool publish(const LeaderRecord& record);

  // Whether no other launcher has become the leader, as far as this one knows. The lead stays while
  // etcd does not answer.
  bool leads() const { return leads_; }
  // Records that a round begins. Returns false if etcd does not answer now, or if this launcher
  // does not lead any more: the round must not begin.
  bool settle(RoundFacts facts);
  // Returns why etcd has not recorded something, such as its refusal of this user.
  std::string fault();
  // Records the end of the job, and ends the lead. `last`: what is known of it if this launcher has
  // begun no round.
  void finish(int code, RoundFacts last);
  void resign();

  std::string where() const { return client_.where(); }
  std::string own_address() const { return client_.own_address(); }

 private:
  void keep();
  void renew();
  bool create_leader();
  bool put_facts(const RoundFacts& facts);
  void note_fault(const std::exception& e);

  EtcdClient client_;
  const std::string id_, leader_key_, rounds_key_;
  std::mutex mutex_;  // of the members below
  std::condition_variable wake_;
  LeaderRecord record_;  // own
  int64_t created_ = 0, lease_ = 0, rounds_lease_ = 0;
  std::optional<RoundFacts> facts_;
  bool ends_ = false;
  std::atomic<bool> leads_{false}, answers_{true};
  std::mutex fault_mutex_;  // not mutex_, which a call that waits for etcd holds
  std::string fault_;
  std::thread keeper_;
};

}  // namespace mtrain::launch
