#include "comm/process/process_world.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/strings.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_transport.h"
#include "comm/process/arrival_watch.h"
#include "comm/process/host_process.h"
#include "comm/process/shared_memory_transport.h"
#include "store/rendezvous_host.h"
#include "store/store.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

// Returns a hash of this program's file, which is equal for ranks that run the same build.
uint64_t hash_of_program() {
  const MappedFile program("/proc/self/exe");
  const auto bytes = program.bytes();
  return Fnv1a().add({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).value();
}

// Text from another rank is shown up to this length.
std::string bounded_reason(std::string_view text) {
  return std::string(text.substr(0, store::kMaxReasonBytes));
}

// Returns the lines in which the two texts differ: "`lr: 2` instead of `lr: 1`, ...".
std::string differences(const std::string& own, const std::string& first) {
  constexpr size_t kMaxShown = 8;
  const auto x = split(own, '\n'), y = split(first, '\n');
  std::string text;
  size_t found = 0;
  for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    const std::string p = i < x.size() ? x[i] : "", q = i < y.size() ? y[i] : "";
    if (p == q || ++found > kMaxShown) continue;
    text += fmt::format("{}`{}` instead of `{}`", text.empty() ? "" : ", ", bounded_reason(trim(p)),
                        bounded_reason(trim(q)));
  }
  return found > kMaxShown ? text + fmt::format(", and {} more", found - kMaxShown) : text;
}

// The collection of the ranks that may train together, with their hosts.
constexpr const char* kArrived = "arrived";

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds rendezvous_time(const ProcessWorldOptions& o) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(o.timeout);
}

Token await_token(const ProcessWorldOptions& o, Clock::time_point deadline) {
  for (;;) {
    if (const auto token = o.token.find()) return *token;
    if (Clock::now() > deadline)
      throw CommError(
          fmt::format("rank {} has no token of the job after {:.3g} s (comm.timeout_s): rank 0, "
                      "which makes it, has not started, or made it where this host cannot see it",
                      o.rank, o.timeout.count()),
          "start mtrain-launch on host 0 (--node_rank=0) first; " + o.token.hint);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Makes the other ranks end, which wait for this one, and throws.
[[noreturn]] void refuse_to_join(store::Store& store, const std::string& reason,
                                 const std::string& hint) {
  store.fail(reason);
  throw UserError(reason, hint);
}

// Connects to the server, and sets `at.token` to the token that it knows. Returns null if the
// server has a different token: this host may still see the token of an earlier job.
std::shared_ptr<store::Store> connect(store::StoreAddress& at, const ProcessWorldOptions& o,
                                      Clock::time_point deadline) {
  at.token = await_token(o, deadline);
  try {
    return std::make_shared<store::Store>(at, rendezvous_time(o));
  } catch (const store::OtherJobError& e) {
    if (!o.token.may_change) throw;
    if (Clock::now() > deadline) throw UserError(e.message(), o.token.hint);
    return nullptr;
  }
}

// Connects to the store of this start of the ranks. Throws UserError if another rank with this
// number has already joined.
std::shared_ptr<store::Store> join_store(store::StoreAddress& at, const ProcessWorldOptions& o) {
  const auto deadline = Clock::now() + rendezvous_time(o);
  std::shared_ptr<store::Store> store;
  while (!(store = connect(at, o, deadline)))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  bool first = true;
  try {
    first = store->put(kBegun, o.rank, o.size, "");
  } catch (const CommError&) {
    // A rank with another number of ranks has come before: shake_hands() finds which one is wrong.
  }
  if (first) return store;
  throw UserError(
      fmt::format("rank {} has already joined: another job uses this port, or another host "
                  "has this host's number",
                  o.rank),
      "choose another port with --master_port (MASTER_PORT), or give each host a --node_rank "
      "of its own: 0, 1, ...");
}

// Checks that this rank runs the program and the recipe of rank 0: ranks with different settings
// would wait for each other in different places, or train nonsense.
void shake_hands(store::Store& store, const ProcessWorldOptions& o) {
  const std::string program = fmt::format("{:016x}", hash_of_program());
  const std::string size = std::to_string(o.size);
  if (o.rank == 0) store.set("size", size);
  if (const std::string first = store.get("size"); first != size) {
    const std::string reason = fmt::format("rank {} is one of {} ranks, and rank 0 one of {}",
                                           o.rank, size, bounded_reason(first));
    refuse_to_join(store, reason,
                   "give every host the same --nnodes and --nproc_per_node: all hosts have the "
                   "same number of ranks");
  }
  if (o.rank == 0) store.set("program", program);
  if (o.rank == 0) store.set("recipe", o.recipe);
  if (const std::string first = store.get("program"); first != program)
    refuse_to_join(
        store, fmt::format("rank {} runs a different build of this program from rank 0", o.rank),
        "install the same build on every host");
  if (const std::string first = store.get("recipe"); first != o.recipe) {
    refuse_to_join(store,
                   fmt::format("rank {} has a different recipe from rank 0: {}", o.rank,
                               differences(o.recipe, first)),
                   "start all ranks with the same recipe and settings");
  }
}

// Names the ranks that have not begun, or else those that have not arrived: "rank 3", or "host 1 of
// 2 (rank 2, 3)". Names none if the store does not answer.
std::string absent_ranks(const store::StoreAddress& at, const ProcessWorldOptions& o) {
  std::vector<int64_t> ranks, hosts;
  try {
    // A connection whose call has timed out is closed.
    store::Store store(at, std::chrono::seconds(2));
    ranks = store.missing(kBegun, o.size);
    if (ranks.empty()) ranks = store.missing(kArrived, o.size);
  } catch (const Error&) {
  }
  if (ranks.empty()) return "a rank";
  const std::string text = ranks.size() > 8
                               ? fmt::format("rank {} and {} others", ranks[0], ranks.size() - 1)
                               : fmt::format("rank {}", fmt::join(ranks, ", "));
  const int all = o.size / std::max(1, o.local_size);
  if (all <= 1) return text;
  for (const int64_t r : ranks)
    if (const int64_t host = r / o.local_size; hosts.empty() || hosts.back() != host)
      hosts.push_back(host);
  return fmt::format("host {} of {} ({})", fmt::join(hosts, ", "), all, text);
}

// Waits until all ranks have arrived, and returns whether they run on one host. Throws CommError,
// which names those that have not arrived.
bool await_all(store::Store& store, const store::StoreAddress& at, const ProcessWorldOptions& o) {
  const auto begin = Clock::now();
  try {
    store.put(kArrived, o.rank, o.size, host_identity());
    const auto hosts = store.all(kArrived, o.size);
    return std::ranges::all_of(hosts, [&](const std::string& host) { return host == hosts[0]; });
  } catch (const store::OldRoundError&) {
    throw;
  } catch (const CommError& e) {
    constexpr std::chrono::milliseconds kRounding{100};
    if (Clock::now() - begin < rendezvous_time(o) - kRounding)
      throw CommError(fmt::format("the ranks do not meet: {}", e.message()), e.hint());
    throw CommError(
        fmt::format("{} did not arrive within {:.3g} s", absent_ranks(at, o), o.timeout.count()),
        "start mtrain-launch on every host, with its own --node_rank; "
        "comm.timeout_s sets how long ranks wait");
  }
}

std::shared_ptr<Transport> make_transport(std::shared_ptr<store::Store> store,
                                          const store::StoreAddress& at, bool one_host,
                                          const ProcessWorldOptions& o) {
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(o.timeout);
  MT_CHECK(o.backend != CommBackend::thread, "ranks that are processes cannot be threads");
  const bool automatic = o.backend == CommBackend::automatic;
  const bool on_gpu = o.device == DeviceKind::cuda;
  if (o.backend == CommBackend::nccl || (automatic && on_gpu)) {
    MT_CHECK(on_gpu, "the backend nccl was chosen for a rank without a GPU");
    return nccl_transport(load_nccl(o.device_number), {at, timeout, o.rank});
  }
  if (automatic && one_host)
    return shared_memory_transport(std::move(store), o.rank, o.size, timeout);
  return gloo_transport({at, o.rank, o.size, timeout});
}

// A transport that keeps rank 0's server alive, if it has one, since groups connect after the
// handshake.
class ServedTransport : public Transport {
 public:
  ServedTransport(std::unique_ptr<store::StoreServer> server, std::shared_ptr<Transport> transport,
                  const store::StoreAddress& at, const ProcessWorldOptions& o)
      : token_(o.token.keep),
        server_(std::move(server)),
        transport_(std::move(transport)),
        rank_(o.rank),
        at_(at),
        timeout_(rendezvous_time(o)),
        // A connection of its own, since the other one may be waiting. A failing rank must not wait
        // long.
        failures_(at, rendezvous_time(o), std::chrono::seconds(2)) {}
  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks,
                                        int rank, Traffic traffic) override {
    return transport_->connect(name, ranks, rank, traffic);
  }
  std::vector<std::shared_ptr<Communicator>> connect_all(
      const std::vector<mesh::GroupSplit>& splits) override {
    return transport_->connect_all(splits);
  }
  std::shared_ptr<Mailbox> mailbox() override { return store_mailbox(at_, timeout_); }
  std::optional<JobAccess> access() override {
    return JobAccess{at_.token, failures_.local_address(), failures_.server_address()};
  }
  void abort(std::string_view reason) noexcept override {
    try {
      failures_.fail(fmt::format("rank {} gave up: {}", rank_, reason));
    } catch (const std::exception&) {
      // The store is gone: no rank waits for a key any more.
    }
  }
  std::string failure() override { return failures_.failure(); }

 private:
  const std::shared_ptr<void> token_;
  std::unique_ptr<store::StoreServer> server_;
  std::shared_ptr<Transport> transport_;
  const int rank_;
  const store::StoreAddress at_;
  const std::chrono::milliseconds timeout_;
  store::Store failures_;
};

}  // namespace

World process_world(const ProcessWorldOptions& o) {
  if (o.size == 1) return World::alone();
  MT_CHECK(o.token.find, "ranks without a token");
  const bool one_host = o.local_size == o.size;
  store::RendezvousHost host = store::rendezvous_host(o.master_addr, one_host);
  // The launcher may serve other hosts, too, which have no ranks now.
  if (one_host && !o.served_at.empty()) host.reached = o.served_at;
  store::StoreAddress at{host.reached, o.master_port, {}, o.restarts, o.job};
  std::unique_ptr<store::StoreServer> server;
  if (o.rank == 0 && !o.served) {
    const auto token = o.token.find();
    MT_CHECK(token, "rank 0 has no token");
    server = std::make_unique<store::StoreServer>(
        store::StoreAddress{host.listens, o.master_port, *token, o.restarts, o.job});
  }
  std::optional<ArrivalWatch> watch(
      std::in_place,
      ArrivalWatch::Options{.size = o.size,
                            .local_size = o.local_size,
                            .where = fmt::format("{}:{}", o.master_addr, o.master_port),
                            .timeout = o.timeout,
                            .quiet = kWaitInSilence,
                            .tell = o.waiting});
  auto store = join_store(at, o);
  watch->joined(at);
  shake_hands(*store, o);
  const bool shares_host = await_all(*store, at, o);
  watch.reset();
  auto transport = make_transport(std::move(store), at, shares_host, o);
  return {o.rank, o.size,
          std::make_shared<ServedTransport>(std::move(server), std::move(transport), at, o),
          o.link};
}

}  // namespace mtrain::comm
