// The store of a job, which the launcher of host 0 serves. It outlives the ranks.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/token.h"
#include "store/store.h"

namespace mtrain::launch {

struct AgentOptions;

class JobToken;
class PortClaim;

// The job's token, as far as the launcher knows it, and the claim to the job's port. On host 0 also
// the server of the store, if the ranks use one.
class JobStore {
 public:
  // Throws UserError if the port is taken, or a token is not valid. Call it after the watchdog has
  // been started: a server has a thread.
  explicit JobStore(const AgentOptions& options);
  ~JobStore();
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  // For a job whose launchers elect one that leads. The launcher that does serves the store, at
  // this address of its host. `replaces`: it replaces a leader that is gone for the others, but may
  // still have the token's file, since its process was stopped.
  void lead(const std::string& own_address, bool replaces);
  void follow(const std::string& address, uint16_t port);  // of another launcher
  void leave();                                            // neither leads nor follows
  // Identifies the token without revealing it; "": none is known yet.
  std::string fingerprint() const;

  uint16_t port() const { return port_; }
  const std::string& reached() const { return reached_; }  // the name or address of the server
  bool serves() const { return server_ != nullptr; }
  store::StoreServer* server() { return server_.get(); }
  // The address at which the launchers of all hosts reach the server.
  store::StoreAddress address() const;
  // Returns nothing while the token's file is not there. It may still be that of an earlier job if
  // this is not host 0.
  std::optional<Token> find_token() const;
  bool token_may_change() const;
  // The token that the launcher passes to its ranks; "": they find it themselves.
  std::string token() const { return token_ ? token_->hex() : ""; }

  // Both do nothing without a server. A later start has a larger number.
  void begin(int64_t start);
  // Makes the ranks of this start end that wait for another one.
  void fail(const std::string& reason);

 private:
  void serve(const std::string& address);

  const AgentOptions& o_;
  std::unique_ptr<PortClaim> claim_;
  std::unique_ptr<JobToken> shared_;
  std::optional<Token> token_;
  std::unique_ptr<store::StoreServer> server_;
  uint16_t port_ = 0;
  std::string reached_, job_name_;
};

}  // namespace mtrain::launch
