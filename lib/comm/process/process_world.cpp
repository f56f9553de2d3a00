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
#include "comm/process/rendezvous_host.h"
#include "comm/process/shared_memory_transport.h"
#include "comm/store.h"
#include "comm/store_protocol.h"

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
  return std::string(text.substr(0, kMaxReasonBytes));
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

constexpr const char* kWell = "well";

// Publishes why this rank does not arrive, since the other ranks wait for it, and throws.
[[noreturn]] void refuse_to_join(Store& store, const ProcessWorldOptions& o,
                                 const std::string& reason, const std::string& hint) {
  store.set(fmt::format("arrived/{}", o.rank), reason);
  throw UserError(reason, hint);
}

// Returns which start of the job serves this store (0: the first); nothing if that start has
// failed.
std::optional<int64_t> start_of(Store& store, const ProcessWorldOptions& o) {
  constexpr const char* kStart = "start";
  if (o.rank == 0) store.set(kStart, std::to_string(o.restarts));
  try {
    const auto start = parse_number(store.get(kStart));
    if (!start) throw CommError("rank 0 does not say which start this is");
    return start;
  } catch (const CommError&) {
    if (o.restarts == 0) throw;
    return std::nullopt;
  }
}

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

// Connects to the server, and sets `at.token` to the token that it knows. Returns null if the
// server has a different token: this host may still see the token of an earlier job.
std::shared_ptr<Store> connect(StoreAddress& at, const ProcessWorldOptions& o,
                               Clock::time_point deadline) {
  at.token = await_token(o, deadline);
  try {
    return std::make_shared<Store>(at, rendezvous_time(o));
  } catch (const OtherJobError& e) {
    if (!o.token.may_change) throw;
    if (Clock::now() > deadline) throw UserError(e.message(), o.token.hint);
    return nullptr;
  }
}

// Connects to the store that rank 0 of this start serves; rank 0 of an earlier start, on another
// host, may still serve its own. Throws UserError if another rank with this number has already
// joined.
std::shared_ptr<Store> join_store(StoreAddress& at, const ProcessWorldOptions& o) {
  const auto deadline = Clock::now() + rendezvous_time(o);
  for (;;) {
    const auto store = connect(at, o, deadline);
    const std::optional<int64_t> start = store ? start_of(*store, o) : std::nullopt;
    if (start && *start > o.restarts)
      throw CommError(fmt::format("rank {} of start {}: all ranks have been restarted as start {}",
                                  o.rank, o.restarts, *start));
    if (start == o.restarts) {
      if (store->add(begun_key(o.rank), 1) == 1) return store;
      throw UserError(
          fmt::format("rank {} has already joined: another job uses this port, or another host "
                      "has this host's number",
                      o.rank),
          "choose another port with --master_port (MASTER_PORT), or give each host a --node_rank "
          "of its own: 0, 1, ...");
    }
    if (Clock::now() > deadline)
      throw CommError(fmt::format("rank 0 did not serve the rendezvous of restart {} within {} s",
                                  o.restarts, o.timeout.count()));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Checks that this rank runs the program and the recipe of rank 0: ranks with different settings
// would wait for each other in different places, or train nonsense.
void shake_hands(Store& store, const ProcessWorldOptions& o) {
  const std::string program = fmt::format("{:016x}", hash_of_program());
  const std::string size = std::to_string(o.size);
  if (o.rank == 0) store.set("size", size);
  if (const std::string first = store.get("size"); first != size) {
    const std::string reason = fmt::format("rank {} is one of {} ranks, and rank 0 one of {}",
                                           o.rank, size, bounded_reason(first));
    // The ranks that rank 0 waits for may not exist.
    store.fail(reason);
    throw UserError(reason,
                    "give every host the same --nnodes and --nproc_per_node: all hosts have the "
                    "same number of ranks");
  }
  if (o.rank == 0) store.set("program", program);
  if (o.rank == 0) store.set("recipe", o.recipe);
  if (const std::string first = store.get("program"); first != program)
    refuse_to_join(
        store, o, fmt::format("rank {} runs a different build of this program from rank 0", o.rank),
        "install the same build on every host");
  if (const std::string first = store.get("recipe"); first != o.recipe) {
    refuse_to_join(store, o,
                   fmt::format("rank {} has a different recipe from rank 0: {}", o.rank,
                               differences(o.recipe, first)),
                   "start all ranks with the same recipe and settings");
  }
  store.set(fmt::format("arrived/{}", o.rank), kWell);
}

// Names the ranks that have not begun: "rank 3", or "host 1 of 2 (rank 2, 3)". Names only `rank` if
// all have begun or the store does not answer.
std::string absent_ranks(const StoreAddress& at, const ProcessWorldOptions& o, int rank) {
  std::vector<int> ranks, hosts;
  try {
    Store store(at, std::chrono::seconds(2));  // a connection whose call has timed out is closed
    for (int r = 0; r < o.size; ++r)
      if (store.add(begun_key(r), 0) == 0) ranks.push_back(r);
  } catch (const Error&) {
    ranks.clear();
  }
  if (ranks.empty()) ranks.push_back(rank);
  const std::string text = ranks.size() > 8
                               ? fmt::format("rank {} and {} others", ranks[0], ranks.size() - 1)
                               : fmt::format("rank {}", fmt::join(ranks, ", "));
  const int all = o.size / std::max(1, o.local_size);
  if (all <= 1) return text;
  for (const int r : ranks)
    if (const int host = r / o.local_size; hosts.empty() || hosts.back() != host)
      hosts.push_back(host);
  return fmt::format("host {} of {} ({})", fmt::join(hosts, ", "), all, text);
}

// Waits until all ranks have arrived. Throws CommError, which names those that have not.
void await_all(Store& store, const StoreAddress& at, const ProcessWorldOptions& o) {
  for (int rank = 0; rank < o.size; ++rank) {
    std::string answer;
    const auto begin = Clock::now();
    try {
      answer = store.get(fmt::format("arrived/{}", rank));
    } catch (const CommError& e) {
      constexpr std::chrono::milliseconds kRounding{100};
      if (Clock::now() - begin < rendezvous_time(o) - kRounding)
        throw CommError(fmt::format("rank {} did not arrive: {}", rank, e.message()), e.hint());
      throw CommError(fmt::format("{} did not arrive within {:.3g} s", absent_ranks(at, o, rank),
                                  o.timeout.count()),
                      "start mtrain-launch on every host, with its own --node_rank; "
                      "comm.timeout_s sets how long ranks wait");
    }
    if (answer != kWell)
      throw CommError(bounded_reason(answer), "start all ranks with the same program and recipe");
  }
}

bool all_on_this_host(Store& store, const ProcessWorldOptions& o) {
  const std::string host = host_identity();
  store.set(fmt::format("host/{}", o.rank), host);
  bool all = true;
  for (int rank = 0; rank < o.size; ++rank)
    all = store.get(fmt::format("host/{}", rank)) == host && all;
  return all;
}

std::shared_ptr<Transport> make_transport(std::shared_ptr<Store> store, const StoreAddress& at,
                                          const ProcessWorldOptions& o) {
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(o.timeout);
  MT_CHECK(o.backend != CommBackend::thread, "ranks that are processes cannot be threads");
  const bool automatic = o.backend == CommBackend::automatic;
  const bool on_gpu = o.device == DeviceKind::cuda;
  if (o.backend == CommBackend::nccl || (automatic && on_gpu)) {
    MT_CHECK(on_gpu, "the backend nccl was chosen for a rank without a GPU");
    return nccl_transport(load_nccl(o.device_number), {at, timeout, o.rank});
  }
  if (automatic && all_on_this_host(*store, o))
    return shared_memory_transport(std::move(store), o.rank, o.size, timeout);
  return gloo_transport({at, o.rank, o.size, timeout});
}

// A transport that keeps rank 0's server alive, since groups connect after the handshake.
class ServedTransport : public Transport {
 public:
  ServedTransport(std::unique_ptr<StoreServer> server, std::shared_ptr<Transport> transport,
                  const StoreAddress& at, const ProcessWorldOptions& o)
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

 private:
  const std::shared_ptr<void> token_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Transport> transport_;
  const int rank_;
  const StoreAddress at_;
  const std::chrono::milliseconds timeout_;
  Store failures_;
};

}  // namespace

World process_world(const ProcessWorldOptions& o) {
  if (o.size == 1) return World::alone();
  MT_CHECK(o.token.find, "ranks without a token");
  const RendezvousHost host = rendezvous_host(o.master_addr, o.local_size == o.size);
  StoreAddress at{host.reached, o.master_port, {}};
  std::unique_ptr<StoreServer> server;
  if (o.rank == 0) {
    const auto token = o.token.find();
    MT_CHECK(token, "rank 0 has no token");
    server = std::make_unique<StoreServer>(StoreAddress{host.listens, o.master_port, *token});
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
  await_all(*store, at, o);
  watch.reset();
  auto transport = make_transport(std::move(store), at, o);
  return {o.rank, o.size,
          std::make_shared<ServedTransport>(std::move(server), std::move(transport), at, o),
          o.link};
}

}  // namespace mtrain::comm
