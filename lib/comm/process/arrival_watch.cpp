#include "comm/process/arrival_watch.h"

#include <utility>

namespace mtrain::comm {

namespace {
constexpr std::chrono::seconds kAskEvery{1}, kAnswerTime{2};
}

std::string begun_key(int rank) { return fmt::format("begun/{}", rank); }

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

void ArrivalWatch::joined(const StoreAddress& at) {
  const std::lock_guard lock(mutex_);
  at_ = at;
}

void ArrivalWatch::watch() {
  std::unique_lock lock(mutex_);
  std::chrono::duration<double> pause = o_.quiet;
  while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
    pause = kAskEvery;
    const std::optional<StoreAddress> at = at_;
    lock.unlock();
    o_.tell(text(at));
    lock.lock();
  }
}

std::string ArrivalWatch::text(const std::optional<StoreAddress>& at) {
  return fmt::format("waiting for {} at {} ({:.3g} s)", at ? absent(*at) : "rank 0", o_.where,
                     o_.timeout.count());
}

std::string ArrivalWatch::absent(const StoreAddress& at) {
  try {
    if (!store_) store_ = std::make_unique<Store>(at, kAnswerTime);
    const int hosts = o_.size / o_.local_size;
    if (const int absent = hosts > 1 ? missing(*store_, o_.local_size) : 0)
      return fmt::format("{} of {} hosts", absent, hosts);
    if (const int absent = missing(*store_, 1))
      return fmt::format("{} of {} ranks", absent, o_.size);
  } catch (const std::exception&) {
    store_.reset();  // the rank itself will report what is wrong with the store
  }
  return "the other ranks";
}

int ArrivalWatch::missing(Store& store, int apart) const {
  int count = 0;
  for (int rank = 0; rank < o_.size; rank += apart) count += store.add(begun_key(rank), 0) == 0;
  return count;
}

}  // namespace mtrain::comm
