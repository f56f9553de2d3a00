#include "launch/leading_launcher.h"

#include <utility>

#include "base/error.h"

namespace mtrain::launch {

namespace {

using Clock = RoundLeader::Clock;
using namespace std::chrono_literals;

// Connections end, and leases run out, without a note.
constexpr auto kLookEvery = 100ms;
constexpr auto kLongestGoodbye = 3s;

std::map<std::string, SeenLauncher> seen_launchers(store::StoreServer& server) {
  std::map<std::string, SeenLauncher> seen;
  for (const auto& [key, value] : server.launcher_values())
    if (auto note = parse_note(value.text); note && note_key(*note) == key)
      seen[key] = {std::move(*note), value.connected};
  return seen;
}

}  // namespace

LeadingLauncher::LeadingLauncher(LeaderOptions options, store::StoreServer& server,
                                 const std::optional<RoundFacts>& before)
    : leader_(before ? RoundLeader(std::move(options), *before) : RoundLeader(std::move(options))),
      server_(server),
      continues_(before.has_value()) {
  thread_ = std::thread([this] { run(); });
}

LeadingLauncher::~LeadingLauncher() {
  ends_ = true;
  thread_.join();
}

void LeadingLauncher::run() {
  while (!ends_ && !leader_.is_over()) {
    server_.await_launchers(kLookEvery);
    try {
      for (const LauncherNews& news : leader_.look(seen_launchers(server_), Clock::now()))
        announce(news);
    } catch (const std::exception& e) {
      try {
        announce({.kind = LauncherNews::Kind::over,
                  .code = 1,
                  .lines = {fmt::format("mtrain-launch: error: {}", e.what())}});
      } catch (const std::exception&) {  // the store is full: the others miss this launcher's beat
      }
      return;
    }
  }
}

void LeadingLauncher::announce(const LauncherNews& news) {
  using Kind = LauncherNews::Kind;
  server_.set_launcher_value(news_key(++announced_), text_of(news));
  // A launcher that joins begins with the round that runs, or waits for the next one. Each
  // launcher may have a `run` of its own.
  const bool begins = news.kind == Kind::run && news.round > begun_;
  if (begins) begun_ = news.round;
  if (begins || news.kind == Kind::over || (announced_ == 1 && continues_))
    server_.set_launcher_value(kFirstNews, std::to_string(announced_));
  else if (news.kind == Kind::end || announced_ == 1)
    server_.set_launcher_value(kFirstNews, std::to_string(announced_ + 1));
  if (news.kind == Kind::end || news.kind == Kind::kill)
    server_.fail_round("the ranks of another host have ended");
}

void LeadingLauncher::await_others(const std::string& own_id) {
  const auto until = Clock::now() + kLongestGoodbye;
  const auto others = [&] {
    for (const auto& [key, seen] : seen_launchers(server_))
      if (seen.connected && seen.note.id != own_id) return true;
    return false;
  };
  while (others() && Clock::now() < until) server_.await_launchers(50ms);
}

}  // namespace mtrain::launch
