// Reports for whom a rank waits while the ranks of a job connect.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "store/store.h"

namespace mtrain::comm {

// The store's collection of the ranks that have connected to it.
constexpr const char* kBegun = "begun";

class ArrivalWatch {
 public:
  struct Options {
    int size = 1, local_size = 1;  // ranks of the job, and on each host
    std::string where;             // host and port at which they meet
    std::chrono::duration<double> timeout;
    std::chrono::duration<double> quiet;  // before the first report
    // Gets "waiting for 1 of 2 hosts at host0:29500 (600 s)" about once a second, from a thread of
    // the watch; may be empty.
    std::function<void(const std::string&)> tell;
  };
  explicit ArrivalWatch(Options options);
  ~ArrivalWatch();
  ArrivalWatch(const ArrivalWatch&) = delete;
  ArrivalWatch& operator=(const ArrivalWatch&) = delete;

  void joined(const store::StoreAddress&
                  at);  // this rank has connected to the store, which knows who has begun

 private:
  void watch();
  std::string text(const std::optional<store::StoreAddress>& at);
  std::string absent(const store::StoreAddress& at);  // "1 of 2 hosts"

  const Options o_;
  std::unique_ptr<store::Store> store_;  // a connection of its own, since the rank's is waiting
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<store::StoreAddress> at_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace mtrain::comm
