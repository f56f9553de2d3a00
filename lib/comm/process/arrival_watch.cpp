#include "comm/process/arrival_watch.h"

#include <algorithm>
#include <utility>

namespace mtrain::comm {

namespace {
constexpr std::chrono::seconds kAskEvery{1}, kAnswerTime{2};
}

ArrivalWatch::ArrivalWatch(Options options) : o_(std::move(options)) {
  if (o_.tell) thread_ = std::thread([this] { watch(); });
}

ArrivalWatch::~ArrivalWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ArrivalWatch::joined(const store::StoreAddress& at) {
  const std::lock_guard lock(mutex_);
  at_ = at;
}

void ArrivalWatch::watch() {
  std::unique_lock lock(mutex_);
  std::chrono::duration<double> pause = o_.quiet;
  while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
    pause = kAskEvery;
    const std::optional<store::StoreAddress> at = at_;
    lock.unlock();
    o_.tell(text(at));
    lock.lock();
  }
}

std::string ArrivalWatch::text(const std::optional<store::StoreAddress>& at) {
  return fmt::format("waiting for {} at {} ({:.3g} s)", at ? absent(*at) : "rank 0", o_.where,
                     o_.timeout.count());
}

std::string ArrivalWatch::absent(const store::StoreAddress& at) {
  try {
    if (!store_) store_ = std::make_unique<store::Store>(at, kAnswerTime);
    const auto ranks = store_->missing(kBegun, o_.size);
    const int hosts = o_.size / o_.local_size;
    // A host is missing until its first rank has begun.
    const auto absent_hosts =
        std::ranges::count_if(ranks, [&](int64_t rank) { return rank % o_.local_size == 0; });
    if (hosts > 1 && absent_hosts > 0) return fmt::format("{} of {} hosts", absent_hosts, hosts);
    if (!ranks.empty()) return fmt::format("{} of {} ranks", ranks.size(), o_.size);
  } catch (const std::exception&) {
    store_.reset();  // the rank itself will report what is wrong with the store
  }
  return "the other ranks";
}

}  // namespace mtrain::comm
