#include "base/pulse.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include <fmt/core.h>

#include "base/memory_file.h"

namespace mtrain {

namespace {

constexpr uint64_t kMagic = 0x3565736c7570746dull;  // "mtpulse5": a new layout gets a new number
constexpr size_t kTimes = 64;                       // steps whose median is known
// The first steps of a start are slower: memory is touched first, and GEMMs are measured.
constexpr int64_t kSlowSteps = 2;
constexpr uint64_t kControl = 2;  // of StreamWords::communicates: the host waits for its launches

constexpr int kStragglerShift = 25;  // a job has at most 2^24 ranks
constexpr uint64_t kRankBits = (uint64_t{1} << kStragglerShift) - 1;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free);

// Text in words: a reader in another process sees no torn word.
template <size_t WORDS>
using Text = std::array<Word, WORDS>;

template <size_t WORDS>
void write_words(Text<WORDS>& to, std::string_view text) {
  std::array<uint64_t, WORDS> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), WORDS * sizeof(uint64_t)));
  for (size_t i = 0; i < WORDS; ++i) to[i].store(words[i], std::memory_order_release);
}

// Bytes that do not print become question marks: the text may come from another program.
template <size_t WORDS>
std::string read_words(const Text<WORDS>& from) {
  std::array<uint64_t, WORDS> words;
  for (size_t i = 0; i < WORDS; ++i) words[i] = from[i].load(std::memory_order_acquire);
  const char* text = reinterpret_cast<const char*>(words.data());
  std::string out(text, strnlen(text, sizeof words));
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

void set_double(Word& to, double value) { to.store(std::bit_cast<uint64_t>(value)); }
double double_in(const Word& from) { return std::bit_cast<double>(from.load()); }

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct StreamWords {
  Text<2> name;
  Word enqueued, done, communicates;
};
struct LaunchWords {
  Word id;  // its place among all launches, from 1; 0: it is being written
  Word number, stream;
  Text<5> name;
};

}  // namespace

// The layout of version 5. Every member is a word, which one store changes.
struct Pulse::Page {
  Word magic, bytes, rank, pid;
  Word phase, step, done_step, last_step, began, limit, progress, updates, step_s, median_s;
  // straggler: the rank plus 1, and above its bits the step.
  Word memory, memory_peak, exposed, spike_step, straggler;
  Word streams, launches, written;
  std::array<StreamWords, kStreams> stream;
  std::array<LaunchWords, kLaunches> launch;
};

Pulse::Pulse(int fd, Page* page) : fd_(fd), page_(page) { times_.reserve(kTimes); }

Pulse::Page* Pulse::new_page(int fd, int rank) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* page = static_cast<Page*>(memory);  // zeros are the initial values of all words
  page->bytes = sizeof(Page);
  page->rank = uint64_t(rank);
  set_double(page->exposed, -1);
  page->magic = kMagic;
  return page;
}

std::shared_ptr<Pulse> Pulse::make(int rank) {
  int fd = memory_file("mtrain-pulse"), error = fd < 0 ? errno : 0;
  // Nobody can make a sealed page shorter: a reader then never meets SIGBUS.
  if (fd >= 0 && (ftruncate(fd, sizeof(Page)) != 0 ||
                  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
    error = errno;
    close(fd);
    fd = -1;
  }
  std::shared_ptr<Pulse> pulse(new Pulse(fd, new_page(fd, rank)));
  pulse->error_ = error;
  return pulse;
}

Pulse::~Pulse() {
  munmap(page_, sizeof(Page));
  if (fd_ >= 0) close(fd_);
}

namespace {

// Returns whether a descriptor is that of a sealed page of `bytes` bytes.
bool is_page(int fd, size_t bytes) {
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         size_t(info.st_size) == bytes;
}

}  // namespace

std::shared_ptr<Pulse> Pulse::inherited(int rank) {
  const char* text = std::getenv(kVariable);
  if (!text) return nullptr;
  int fd = -1;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, fd);
  if (error != std::errc() || at != end || fd <= STDERR_FILENO || !is_page(fd, sizeof(Page)))
    return nullptr;
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* page = static_cast<Page*>(memory);
  if (page->magic != kMagic || page->rank != uint64_t(rank)) {
    munmap(memory, sizeof(Page));
    return nullptr;
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // programs that this rank starts are not the rank
  return std::shared_ptr<Pulse>(new Pulse(fd, page));
}

std::shared_ptr<Pulse> Pulse::of_process(int rank) {
  auto pulse = inherited(rank);
  if (!pulse) pulse = make(rank);
  Page& page = *pulse->page_;
  for (Word* word :
       {&page.phase, &page.step, &page.done_step, &page.last_step, &page.limit, &page.updates,
        &page.step_s, &page.median_s, &page.spike_step, &page.straggler})
    *word = 0;
  page.pid = uint64_t(getpid());
  return pulse;
}

std::optional<PulseState> Pulse::read(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  void* memory = is_page(fd, sizeof(Page))
                     ? mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED) return std::nullopt;
  const auto* page = static_cast<const Page*>(memory);
  std::optional<PulseState> state;
  if (page->magic == kMagic) state = copy(*page);
  munmap(memory, sizeof(Page));
  return state;
}

namespace {

PulsePhase phase_in(const Word& word) {
  return PulsePhase(std::min<uint64_t>(word, uint64_t(PulsePhase::end)));
}

}  // namespace

PulseState Pulse::state() const { return copy(*page_); }

// The limit is read before the progress, and written after it: a reader that sees a new limit also
// sees the progress that came with it.
PulseGlance Pulse::glance() const {
  PulseGlance s;
  s.limit_s = double_in(page_->limit);
  s.progress = page_->progress;
  s.phase = phase_in(page_->phase);
  s.step = int64_t(page_->step.load());
  s.done_step = int64_t(page_->done_step.load());
  s.spike_step = int64_t(page_->spike_step.load());
  const uint64_t straggler = page_->straggler;
  s.straggler = int(straggler & kRankBits) - 1;
  s.straggler_step = int64_t(straggler >> kStragglerShift);
  s.in_slow_step = s.phase == PulsePhase::step && int64_t(page_->updates.load()) < kSlowSteps;
  s.work = page_->written;
  for (const StreamWords& stream : page_->stream)
    if (stream.communicates != kControl) s.work += stream.enqueued + stream.done;
  return s;
}

PulseState Pulse::copy(const Page& p) {
  PulseState s;
  s.limit_s = double_in(p.limit);
  s.progress = p.progress;
  s.rank = int(p.rank);
  s.pid = int64_t(p.pid.load());
  s.phase = phase_in(p.phase);
  s.step = int64_t(p.step.load()), s.last_step = int64_t(p.last_step.load());
  s.done_step = int64_t(p.done_step.load());
  s.began = double_in(p.began);
  s.updates = int64_t(p.updates.load());
  s.step_s = double_in(p.step_s), s.median_step_s = double_in(p.median_s);
  s.memory = int64_t(p.memory.load()), s.memory_peak = int64_t(p.memory_peak.load());
  s.exposed_s = double_in(p.exposed);
  s.spike_step = int64_t(p.spike_step.load());
  s.launches = p.launches;
  const auto streams = size_t(std::min<uint64_t>(p.streams, kStreams));
  for (size_t i = 0; i < streams; ++i)
    s.streams.push_back({read_words(p.stream[i].name), p.stream[i].enqueued, p.stream[i].done,
                         p.stream[i].communicates != 0});
  const uint64_t first = s.launches > kLaunches ? s.launches - kLaunches : 0;
  // The newest first: a fast writer overwrites the oldest ones meanwhile.
  for (uint64_t id = s.launches; id > first; --id) {
    const LaunchWords& w = p.launch[id % kLaunches];
    if (w.id.load(std::memory_order_acquire) != id) continue;
    PulseState::Launch launch{.number = w.number.load(std::memory_order_acquire),
                              .stream = int(w.stream.load(std::memory_order_acquire)),
                              .name = read_words(w.name)};
    // A writer that has begun to reuse the entry has changed its id first.
    if (w.id.load(std::memory_order_acquire) != id || size_t(launch.stream) >= streams) continue;
    launch.done = s.streams[size_t(launch.stream)].done >= launch.number;
    s.last.push_back(std::move(launch));
  }
  std::ranges::reverse(s.last);
  return s;
}

void Pulse::set_last_step(int64_t step) { page_->last_step = uint64_t(step); }

double Pulse::limit(PulsePhase phase) const {
  switch (phase) {
    case PulsePhase::none: return 0;
    case PulsePhase::start: return limits_.start_s;
    case PulsePhase::save:
    case PulsePhase::end: return limits_.save_s;
    case PulsePhase::step:
    case PulsePhase::evaluation: break;
  }
  if (int64_t(page_->updates.load()) < kSlowSteps) return limits_.start_s;
  if (limits_.step_s) return *limits_.step_s;
  return std::max(PulseLimits::kLeast, PulseLimits::kSteps * median_);
}

void Pulse::at(PulsePhase phase, int64_t step) {
  page_->progress.fetch_add(1);
  page_->phase = uint64_t(phase);
  page_->step = uint64_t(step);
  // A step that begins is not done; after step_done() its number stays.
  const auto done = uint64_t(std::max<int64_t>(0, phase == PulsePhase::step ? step - 1 : step));
  if (done > page_->done_step) page_->done_step = done;
  set_double(page_->began, seconds_now());
  set_double(page_->limit, limit(phase));
}

void Pulse::step_done(double seconds) {
  if (times_.size() < kTimes)
    times_.push_back(seconds);
  else
    times_[next_time_++ % kTimes] = seconds;
  std::array<double, kTimes> sorted;
  const auto end = std::ranges::copy(times_, sorted.begin()).out;
  const auto middle = sorted.begin() + std::distance(sorted.begin(), end) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median_ = *middle;
  set_double(page_->step_s, seconds);
  set_double(page_->median_s, median_);
  page_->done_step = page_->step.load();
  page_->updates.fetch_add(1);
}

void Pulse::wrote() { page_->written.fetch_add(1); }

void Pulse::set_memory(int64_t bytes, int64_t peak) {
  page_->memory.store(uint64_t(bytes), std::memory_order_relaxed);
  page_->memory_peak.store(uint64_t(peak), std::memory_order_relaxed);
}

void Pulse::set_exposed(double seconds) { set_double(page_->exposed, seconds); }

void Pulse::set_straggler(int rank, int64_t step) {
  page_->straggler = uint64_t(step) << kStragglerShift | (uint64_t(rank) + 1);
}
void Pulse::set_spike(int64_t step) { page_->spike_step = uint64_t(step); }

void Pulse::name_stream(int index, std::string_view name, bool communicates) {
  if (index < 0 || index >= kStreams) return;
  StreamWords& stream = page_->stream[size_t(index)];
  write_words(stream.name, name);
  stream.enqueued = stream.done = 0;
  stream.communicates = name == "control" ? kControl : uint64_t(communicates);
  page_->streams = std::max<uint64_t>(page_->streams, uint64_t(index) + 1);
}

void Pulse::launch(int stream, uint64_t number, const char* name) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const uint64_t id = page_->launches.load(kRelaxed) + 1;
  LaunchWords& w = page_->launch[id % kLaunches];
  w.id.store(0, kRelaxed);
  // Stores with release order are not visible before the id that was cleared.
  w.number.store(number, std::memory_order_release);
  w.stream.store(uint64_t(stream), std::memory_order_release);
  write_words(w.name, {name, strnlen(name, sizeof w.name)});
  w.id.store(id, std::memory_order_release);
  page_->launches.store(id, std::memory_order_release);
  if (stream >= 0 && stream < kStreams)
    page_->stream[size_t(stream)].enqueued.store(number, kRelaxed);
}

// Of two threads the one that knows less may come last.
void Pulse::set_done(int stream, uint64_t items) {
  if (stream < 0 || stream >= kStreams) return;
  Word& done = page_->stream[size_t(stream)].done;
  for (uint64_t known = done; known < items && !done.compare_exchange_weak(known, items);) {
  }
}

const PulseState::Launch* PulseState::current() const {
  const auto pending = std::ranges::find(last, false, &Launch::done);
  if (pending != last.end()) return &*pending;
  return last.empty() ? nullptr : &last.back();
}

std::string_view phase_name(PulsePhase phase) {
  switch (phase) {
    case PulsePhase::none: return "none";
    case PulsePhase::start: return "start";
    case PulsePhase::step: return "step";
    case PulsePhase::evaluation: return "evaluation";
    case PulsePhase::save: return "save";
    case PulsePhase::end: return "end";
  }
  return "?";
}

std::string phase_text(const PulseState& s) {
  const std::string of = s.last_step > 0 ? fmt::format(" of {}", s.last_step) : "";
  switch (s.phase) {
    case PulsePhase::none: return "no training";
    case PulsePhase::start: return "start";
    case PulsePhase::step: return fmt::format("step {}{}", s.step, of);
    case PulsePhase::evaluation: return fmt::format("evaluation after step {}{}", s.step, of);
    case PulsePhase::save: return fmt::format("save of step {}{}", s.step, of);
    case PulsePhase::end: return fmt::format("end after step {}{}", s.step, of);
  }
  return "?";
}

std::vector<std::string> launch_lines(const PulseState& s, int most) {
  std::vector<std::string> out;
  const size_t first = s.last.size() - std::min(s.last.size(), size_t(std::max(most, 0)));
  for (size_t i = first; i < s.last.size(); ++i) {
    const PulseState::Launch& l = s.last[i];
    out.push_back(fmt::format("{:>8} #{:<7} {:<24} {}", s.stream_of(l).name, l.number, l.name,
                              l.done ? "done" : "pending"));
  }
  return out;
}

std::string current_text(const PulseState& s) {
  const PulseState::Launch* l = s.current();
  if (!l) return "no launch yet";
  return fmt::format("{} (item {} of stream {}, {})", l->name, l->number, s.stream_of(*l).name,
                     l->done ? "done" : "pending");
}

}  // namespace mtrain
