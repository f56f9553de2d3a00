#include "launch/job_store.h"

#include <cstdlib>

#include "base/error.h"
#include "launch/agent.h"
#include "launch/job.h"
#include "launch/job_token.h"
#include "launch/port_claim.h"
#include "store/rendezvous_host.h"
#include "store/store_protocol.h"

namespace mtrain::launch {

namespace {

// Returns the token that the user has set; "" if there is none.
std::string given_token(const AgentOptions& o) {
  if (const char* own = std::getenv(kTokenVariable); own && *own) return own;
  const auto found = o.environment.find(kTokenVariable);
  return found == o.environment.end() ? "" : found->second;
}

}  // namespace

JobStore::JobStore(const AgentOptions& o)
    : o_(o), port_(o.master_port), reached_(o.master_addr), job_name_(o.run_id) {
  if (o.elects()) {
    leave();
    return;
  }
  const bool several = o.ranks_per_node * o.nodes > 1;
  const bool may_serve = o.uses_store && o.node == 0 && several && !o.etcd;
  // A single rank has no rendezvous, so its port may be in use. But there must be a port number.
  if (!may_serve || o.master_port != 0) {
    if (several || o.master_port == 0) claim_ = std::make_unique<PortClaim>(o.master_port, o.node);
    if (claim_) port_ = claim_->port();
  }
  const std::string given = given_token(o);
  if (given.empty() && o.nodes == 1) token_ = Token::random();
  if (!may_serve && !o.acts_together()) return;
  if (!token_ && (!given.empty() || !o.shared_token.empty())) {
    // Only the job's first rank makes the file.
    const Job job{.rank = o.node, .size = o.ranks_per_node * o.nodes, .token = given};
    shared_ = std::make_unique<JobToken>(job, o.shared_token);
    if (may_serve) token_ = shared_->find();
  }
  if (may_serve && token_) serve(o.master_addr);
}

JobStore::~JobStore() = default;

void JobStore::lead(const std::string& own_address, bool replaces) {
  const Job job{.rank = 0, .size = o_.ranks_per_node * o_.nodes, .token = given_token(o_)};
  shared_ = std::make_unique<JobToken>(job, o_.shared_token, replaces);
  token_ = shared_->find();
  MT_CHECK(token_, "the launcher that leads has no token");
  port_ = o_.master_port;
  serve(own_address);
}

void JobStore::follow(const std::string& address, uint16_t port) {
  leave();
  reached_ = address;
  port_ = port;
}

void JobStore::leave() {
  server_.reset();
  claim_.reset();
  token_.reset();
  const Job job{.rank = 1,  // it makes no token
                .size = o_.ranks_per_node * o_.nodes,
                .token = given_token(o_)};
  shared_.reset();  // removes the file if this launcher has made it
  shared_ = std::make_unique<JobToken>(job, o_.shared_token);
}

std::string JobStore::fingerprint() const {
  const auto token = find_token();
  if (!token) return "";
  // No dialogue with the store has these two nonces, so the proof is of no use in one.
  constexpr store::Nonce kClient{'e', 't', 'c', 'd'}, kServer{'l', 'e', 'a', 'd'};
  const store::Proof proof = store::make_proof(*token, store::StoreEnd::server, kClient, kServer);
  std::string text;
  for (const uint8_t byte : proof) text += fmt::format("{:02x}", byte);
  return text;
}

void JobStore::serve(const std::string& address) {
  const AgentOptions& o = o_;
  constexpr int64_t kConnectionsOfRank = 8;
  const int64_t ranks = int64_t(o.ranks_per_node) * o.nodes;
  store::allow_connections(ranks * kConnectionsOfRank);
  const bool one_host = o.nodes == 1;
  const store::RendezvousHost host = store::rendezvous_host(address, one_host);
  reached_ = host.reached;
  constexpr int kTries = 100;
  for (int i = 1; !server_; ++i) {
    auto server = std::make_unique<store::StoreServer>(
        store::StoreAddress{host.listens, port_, *token_, 0, o.run_id});
    try {
      if (!claim_) claim_ = std::make_unique<PortClaim>(server->port(), o.node);
    } catch (const UserError&) {
      // Another launcher has claimed this free port for ranks that do not listen there yet.
      if (i == kTries) throw;
      continue;
    }
    server_ = std::move(server);
  }
  port_ = server_->port();
}

store::StoreAddress JobStore::address() const {
  return {server_ ? server_->address().host : reached_, port_, {}, store::kLaunchers, job_name_};
}

std::optional<Token> JobStore::find_token() const {
  return token_ || !shared_ ? token_ : shared_->find();
}

bool JobStore::token_may_change() const { return !token_ && shared_ && shared_->is_shared(); }

void JobStore::begin(int64_t start) {
  if (server_ && start > server_->address().round) server_->begin_round(start);
}

void JobStore::fail(const std::string& reason) {
  if (server_) server_->fail_round(reason);
}

}  // namespace mtrain::launch
