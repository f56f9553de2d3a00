#include "comm/recording/recording_transport.h"

#include "base/error.h"

namespace mtrain::comm {

namespace {

[[noreturn]] void never_runs() {
  throw BugError("communication of a recording device cannot run: it has no other ranks");
}

class RecordingCommunicator : public Communicator {
 public:
  void all_reduce(Span, Reduce, const device::LaunchContext&) override { never_runs(); }
  void reduce_scatter(ConstSpan, Span, Reduce, const device::LaunchContext&) override {
    never_runs();
  }
  void all_gather(ConstSpan, Span, const device::LaunchContext&) override { never_runs(); }
  void all_to_all(const std::vector<AllToAllSpans>&, const device::LaunchContext&) override {
    never_runs();
  }
  void broadcast(Span, int, const device::LaunchContext&) override { never_runs(); }
  void exchange(const std::vector<Transfer>&, Clock::time_point,
                const device::LaunchContext&) override {
    never_runs();
  }
  void barrier(const device::LaunchContext&) override { never_runs(); }
  void abort(std::string_view) noexcept override {}
  Clock::time_point last_start() const override { return {}; }
};

class RecordingTransport : public Transport {
 public:
  std::shared_ptr<Communicator> connect(const std::string&, const std::vector<int>&, int,
                                        Traffic) override {
    return communicator_;
  }
  std::shared_ptr<Mailbox> mailbox() override { return shared_mailbox(); }

 private:
  const std::shared_ptr<Communicator> communicator_ = std::make_shared<RecordingCommunicator>();
};

}  // namespace

std::shared_ptr<Transport> recording_transport() { return std::make_shared<RecordingTransport>(); }

}  // namespace mtrain::comm
