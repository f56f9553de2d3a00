#include "run/fault_injection.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "launch/end_signals.h"
#include "ops/elementwise.h"

namespace mtrain::run {

namespace {

using plan::FaultOptions;

// On stderr at once: the rank may not live on.
void announce(const FaultOptions& f) {
  std::string where;  // `slow` has no place
  if (f.phase)
    where = fmt::format(" in phase {}", enum_name(*f.phase));
  else if (!f.launch.empty())
    where = " at " + f.launch;
  const std::string text =
      fmt::format("mtrain: debug.fault: {} on rank {}{}\n", enum_name(f.kind), f.rank, where);
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text.data(), text.size());
}

constexpr const char* kOnPurpose = "an error on purpose (debug.fault)";

// Kills the launcher, as the loss of a host would.
void kill_launcher() {
  const char* launcher = std::getenv(launch::kLauncherPid);
  if (!launcher)
    throw UserError("debug.fault: kind node kills the launcher of the rank, and this run has none",
                    "start it with mtrain-launch");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it prints what is announced
  ::kill(std::atoi(launcher), SIGKILL);
  std::this_thread::sleep_for(std::chrono::seconds(60));  // the watchdog kills this rank
}

// Does what needs neither a launch nor connections.
void fail_by_itself(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill: std::raise(SIGKILL); return;
    case FaultKind::stop: std::raise(SIGSTOP); return;
    case FaultKind::segfault: {
      volatile int* const invalid = reinterpret_cast<volatile int*>(uintptr_t(16));
      *invalid = 0;  // NOLINT(clang-analyzer-core.FixedAddressDereference): on purpose
      return;
    }
    case FaultKind::abort: std::abort();
    case FaultKind::exception: throw RunError(kOnPurpose);
    case FaultKind::async_exception:
      std::thread([] { throw std::runtime_error(kOnPurpose); }).join();
      return;
    case FaultKind::io_error: throw RunError("Input/output error, on purpose (debug.fault)");
    case FaultKind::node: return kill_launcher();
    default: throw BugError("a fault that needs a launch");
  }
}

bool contains(std::string_view text, std::initializer_list<std::string_view> any) {
  return std::ranges::any_of(
      any, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

// Returns the moment of a save (SaveOptions::on_commit) of a fault, and which one of that name.
std::pair<std::string, int64_t> moment_of_save(const FaultOptions& f) {
  const bool first = f.rank == 0;
  std::string name = f.of_save;
  if (f.phase == FaultPhase::staging) name = "stage";
  if (f.phase == FaultPhase::write) name = "write";
  if (f.phase == FaultPhase::commit) name = first ? "manifest" : "report";
  // Without a moment: on rank 0 the data are written, but the commit is not done. On other ranks
  // they are not written.
  if (name.empty()) name = first ? "manifest" : "write";
  // "block 3" is the third moment of this name; other names have blanks, too.
  const size_t blank = name.rfind(' ');
  const int64_t number =
      blank == std::string::npos ? 0 : std::strtoll(name.c_str() + blank, nullptr, 10);
  if (number > 0) name = name.substr(0, blank);
  return {name, std::max<int64_t>(number, 1)};
}

}  // namespace

void fail_in_rendezvous(const std::vector<FaultOptions>& faults, const launch::Job& job) {
  for (const FaultOptions& f : faults)
    if (f.phase == FaultPhase::rendezvous && f.rank == job.rank && job.restarts == 0) {
      announce(f);
      fail_by_itself(f.kind);
    }
}

FaultInjection::FaultInjection(const std::vector<FaultOptions>& faults, train::Trainer& trainer)
    : trainer_(trainer) {
  for (const FaultOptions& f : faults)
    if (f.rank == trainer.world().rank() && f.phase != FaultPhase::rendezvous)
      faults_.push_back({f});
}

FaultInjection::~FaultInjection() {
  trainer_.device().set_launch_check({});
  trainer_.set_gradient_hook({});
}

std::vector<FaultInjection::Fault*> FaultInjection::due(int64_t step) {
  std::vector<Fault*> out;
  for (Fault& f : faults_)
    if (!f.happened && f.options.step == step && f.options.phase != FaultPhase::load &&
        f.options.phase != FaultPhase::end)
      out.push_back(&f);
  return out;
}

void FaultInjection::now(Fault& fault) {
  fault.happened = true;
  announce(fault.options);
  if (fault.options.kind == FaultKind::disconnect)
    trainer_.world().abort("its connections are cut on purpose (debug.fault)");
  else
    fail_by_itself(fault.options.kind);
}

void FaultInjection::in_load() {
  for (Fault& f : faults_)
    if (f.options.phase == FaultPhase::load) now(f);
}

void FaultInjection::before_step(int64_t step) {
  in_evaluation_ = false;
  waiting_.clear();
  trainer_.set_gradient_hook({});
  double factor = 1;  // of all spikes of the step
  for (Fault* f : due(step)) {
    const FaultOptions& o = f->options;
    if (o.kind == FaultKind::slow || o.kind == FaultKind::spike) {
      f->happened = true;
      announce(o);
      if (o.kind == FaultKind::slow)
        trainer_.device().set_compute_slowdown(o.factor);
      else
        multiply_gradients(float(factor *= o.factor));
    } else if (o.moment == Moment::launch || (o.phase && has_launches(*o.phase))) {
      waiting_.push_back(f);
    }
  }
  if (!waiting_.empty()) watch();
}

void FaultInjection::before_evaluation(int64_t step) {
  in_evaluation_ = true;
  for (Fault* f : due(step)) {
    if (f->options.phase != FaultPhase::evaluation) continue;
    if (of_launch(f->options.kind))
      waiting_.push_back(f);
    else
      now(*f);
  }
  if (!waiting_.empty()) watch();
}

std::function<void(std::string_view)> FaultInjection::in_save(int64_t step) {
  struct Due {
    Fault* fault;
    std::string name;
    int64_t left;
  };
  const auto all = std::make_shared<std::vector<Due>>();
  for (Fault* f : due(step)) {
    const auto& phase = f->options.phase;
    const bool of_save = f->options.moment == Moment::save || phase == FaultPhase::staging ||
                         phase == FaultPhase::write || phase == FaultPhase::commit;
    if (!of_save) continue;
    auto [name, number] = moment_of_save(f->options);
    all->push_back({f, std::move(name), number});
  }
  if (all->empty()) return {};
  return [this, all](std::string_view moment) {
    for (Due& d : *all)
      if (moment == d.name && --d.left == 0) now(*d.fault);
  };
}

std::function<void()> FaultInjection::in_save_consolidated(int64_t step) {
  std::vector<Fault*> all = due(step);
  std::erase_if(all, [](Fault* f) { return f->options.moment != Moment::save_consolidated; });
  if (all.empty()) return {};
  return [this, all] {
    for (Fault* f : all) now(*f);
  };
}

void FaultInjection::after_step(int64_t step) {
  for (const Fault* f : due(step))
    if (f->options.phase != FaultPhase::evaluation) refuse(*f, step);
}

void FaultInjection::at_end() {
  for (Fault& f : faults_)
    if (f.options.phase == FaultPhase::end) now(f);
}

void FaultInjection::require_happened(int64_t first, int64_t last) const {
  for (const Fault& f : faults_) {
    const int64_t step = f.options.step;
    if (!f.happened && (step < 1 || (first <= step && step <= last))) refuse(f, step);
  }
}

void FaultInjection::refuse(const Fault& fault, int64_t step) const {
  const FaultOptions& o = fault.options;
  std::string seen;
  for (const auto& name : launches_) seen += (seen.empty() ? "" : ", ") + name;
  throw UserError(
      o.launch.empty()
          ? fmt::format("debug.fault: {} in phase {}: rank {} is never there in step {}",
                        enum_name(o.kind), o.phase ? enum_name(*o.phase) : "?", o.rank, step)
          : fmt::format("debug.fault.at={}: step {} has no such moment on rank {}", o.launch, step,
                        o.rank),
      seen.empty() ? "a save comes with checkpoint.every_steps, its staging with checkpoint.async, "
                     "and its Hugging Face form on rank 0 with checkpoint.save_consolidated: every"
                   : "its launches are " + seen + "; or use save");
}

void FaultInjection::multiply_gradients(float factor) {
  trainer_.set_gradient_hook(
      [this, factor, seen = std::set<const model::Parameter*>()](model::Parameter& p) mutable {
        // Later micro-batches add to the gradient.
        if (seen.insert(&p).second) ops::scale(trainer_.compute(), p.grad, factor);
      });
}

bool FaultInjection::is_place_of(const Fault& fault, const Stream& stream,
                                 const device::LaunchInfo& info) const {
  using device::StreamKind;
  const FaultOptions& o = fault.options;
  if (o.moment == Moment::launch) return o.launch == info.name;
  const StreamKind kind = stream.id().kind;
  const bool compute = kind == StreamKind::compute;
  const bool writes_numbers = std::ranges::any_of(info.writes, [](const device::Access& a) {
    return a.data && !a.partial && is_float(a.dtype);
  });
  if (o.kind == FaultKind::nan && !writes_numbers) return false;
  switch (*o.phase) {
    case FaultPhase::forward: return compute && contains(info.name, {"_fwd"});
    case FaultPhase::backward: return compute && contains(info.name, {"_bwd", "_dgrad", "_wgrad"});
    case FaultPhase::collective:
      return !compute && kind != StreamKind::copy && kind != StreamKind::control;
    case FaultPhase::optimizer: return compute && contains(info.name, {"adamw", "muon"});
    case FaultPhase::evaluation: return compute && in_evaluation_;
    default: return false;
  }
}

void FaultInjection::watch() {
  trainer_.device().set_launch_check([this](Stream& stream, const device::LaunchInfo& info) {
    launches_.insert(info.name);
    std::vector<Fault*> here = waiting_;
    std::erase_if(here, [&](const Fault* f) { return !is_place_of(*f, stream, info); });
    // NaN comes again when the step is repeated, to find its origin.
    std::erase_if(waiting_, [&](Fault* f) {
      return f->options.kind != FaultKind::nan && std::ranges::count(here, f) > 0;
    });
    for (Fault* f : here) in_launch(*f, stream, info);
  });
}

void FaultInjection::in_launch(Fault& fault, Stream& stream, const device::LaunchInfo& info) {
  const bool first = !std::exchange(fault.happened, true);
  if (first && of_launch(fault.options.kind)) announce(fault.options);
  switch (fault.options.kind) {
    case FaultKind::device_error:
      return stream.launch({.name = "device_error"}, [](const device::LaunchContext&) {
        throw RunError("the device reports an error on purpose (debug.fault)");
      });
    case FaultKind::stuck_stream:
      return stream.launch({.name = "stuck_stream"}, [](const device::LaunchContext&) {
        while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
      });
    case FaultKind::nan: {
      // All bits are set: this is NaN in every type of numbers.
      const auto ones = std::make_shared<std::array<unsigned char, 8>>();
      ones->fill(0xff);
      for (device::Access a : info.writes) {
        if (!a.data || a.partial || !is_float(a.dtype)) continue;
        a.bytes = int64_t(dtype_size(a.dtype));
        return stream.upload(a, ones, ones->data());
      }
      return;
    }
    default: break;
  }
  // Waits until all work before the launch has run: the fault then comes during the launch.
  while (stream.completed() + 1 < stream.enqueued()) std::this_thread::yield();
  now(fault);
}

}  // namespace mtrain::run
