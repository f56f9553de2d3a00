#include "launch/torchrun_options.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/strings.h"
#include "launch/job_token.h"

namespace mtrain::launch {

namespace {

std::optional<int> number_within(std::string_view text, int least, int most) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && n >= least && n <= most ? std::optional(n) : std::nullopt;
}

constexpr int kMaxTorchrunRank = 1 << 24;

}  // namespace

Endpoint parse_endpoint(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    throw UserError(fmt::format("--rdzv_endpoint={} {}", text, why),
                    "write host, host:port or [::1]:port");
  };
  std::string host(trim(text)), port;
  const bool brackets = host.starts_with('[');
  if (brackets) {
    const size_t close = host.find(']');
    if (close == std::string::npos) wrong("lacks the closing bracket");
    const std::string rest = host.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') wrong("has something other than a port after the bracket");
    if (!rest.empty()) port = rest;
    host = host.substr(1, close - 1);
  } else if (const size_t colon = host.find(':'); colon != std::string::npos) {
    if (host.find(':', colon + 1) != std::string::npos)
      wrong("has several colons: write an address of IPv6 in brackets");
    port = host.substr(colon);
    host.resize(colon);
  }
  if (host.empty()) wrong("names no host");
  Endpoint endpoint{host, std::nullopt};
  if (port.empty()) return endpoint;
  const auto n = number_within(std::string_view(port).substr(1), 0, 65535);
  if (!n) wrong("does not end with a port from 0 to 65535");
  endpoint.port = uint16_t(*n);
  return endpoint;
}

std::string parse_host(const std::string& source, const std::string& text) {
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  if (brackets) return text.substr(1, text.size() - 2);
  // The parts of a URL around host and port, which some tools take.
  const size_t scheme = text.find("://");
  std::string host = scheme == std::string::npos ? text : text.substr(scheme + 3);
  host = host.substr(0, host.find('/'));
  std::string port;
  if (const size_t close = host.find("]:"); host.starts_with('[') && close != std::string::npos) {
    port = host.substr(close + 2);
    host = host.substr(1, close - 1);
  } else if (std::ranges::count(host, ':') == 1) {
    port = host.substr(host.find(':') + 1);
    host.resize(host.find(':'));
  }
  if (host == text) return host;
  const bool option = source.starts_with("--");  // else a variable of the environment
  const char equals = option ? ' ' : '=';
  throw UserError(
      fmt::format("{}={} is not a host: it takes a host without a port", source, text),
      fmt::format("write {}{}{}{}", source, equals, host.empty() ? "HOST" : host,
                  port.empty() ? ""
                               : fmt::format(" {}{}{}", option ? "--master_port" : "MASTER_PORT",
                                             equals, port)));
}

NodeRange parse_nodes(const std::string& text) {
  constexpr int kMaxNodes = 100000;
  const size_t colon = text.find(':');
  const auto least = number_within(std::string_view(text).substr(0, colon), 1, kMaxNodes);
  const auto most = colon == std::string::npos
                        ? least
                        : number_within(std::string_view(text).substr(colon + 1), 1, kMaxNodes);
  if (!least || !most)
    throw UserError(
        fmt::format("--nnodes={} is not a number of hosts from 1 to {}", text, kMaxNodes),
        "write --nnodes=2, or --nnodes=2:4 for a job that may lose hosts and gain others");
  if (*least > *most)
    throw UserError(fmt::format("--nnodes={}: the first number is the larger one", text),
                    fmt::format("write --nnodes={}:{}", *most, *least));
  return {*least, *most};
}

Streams parse_streams(const std::string& option, const std::string& text) {
  Streams streams;
  const auto wrong = [&] {
    throw UserError(fmt::format("{}={} names no streams", option, text),
                    "write 0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all ranks, or pairs of "
                    "a rank of this host and such a number: 0:3,1:2");
  };
  if (const auto all = number_within(trim(text), 0, 3)) {
    streams.all = *all;
    return streams;
  }
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos) wrong();
    const auto rank = number_within(trim(part.substr(0, colon)), 0, kMaxTorchrunRank);
    const auto bits = number_within(trim(part.substr(colon + 1)), 0, 3);
    if (!rank || !bits) wrong();
    streams.by_local_rank[*rank] = *bits;
  }
  return streams;
}

std::set<int> parse_local_ranks(const std::string& text) {
  std::set<int> ranks;
  if (trim(text).empty()) return ranks;
  for (const std::string& part : split(text, ',')) {
    const auto rank = number_within(trim(part), 0, kMaxTorchrunRank);
    if (!rank)
      throw UserError(fmt::format("--local_ranks_filter={} is not a list of ranks", text),
                      "write the ranks of this host whose output is shown: 0,2");
    ranks.insert(*rank);
  }
  return ranks;
}

RendezvousConfig parse_rendezvous_config(const std::string& text) {
  struct Row {
    const char *key, *why;
  };
  constexpr const char* kTimeout =
      "--rdzv_timeout sets how long hosts wait, comm.timeout_s of the recipe how long ranks wait";
  constexpr const char* kHost = "host 0 serves the rendezvous";
  constexpr const char* kElastic =
      "a job of MIN:MAX hosts waits 5 s for more than MIN, and 10 s for a host that does not "
      "answer";
  constexpr Row kNoEffect[] = {{"timeout", kTimeout},
                               {"join_timeout", kTimeout},
                               {"read_timeout", kTimeout},
                               {"close_timeout", kTimeout},
                               {"heartbeat_timeout", kTimeout},
                               {"last_call_timeout", kElastic},
                               {"keep_alive_interval", kElastic},
                               {"keep_alive_max_attempt", kElastic},
                               {"is_host", kHost},
                               {"store_type", kHost},
                               {"use_libuv", kHost}};
  // Keys of etcd, and torchrun's other names for them.
  constexpr Row kEtcd[] = {
      {"protocol", "protocol"}, {"cacert", "cacert"}, {"ca_cert", "cacert"},
      {"cert", "cert"},         {"ssl_cert", "cert"}, {"key", "key"},
      {"ssl_cert_key", "key"},  {"user", "user"},     {"password_file", "password_file"}};
  RendezvousConfig config;
  for (const std::string& part : split(text, ',')) {
    const std::string pair(trim(part));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      throw UserError(fmt::format("--rdzv_conf: {} has no value", pair), "write key=value,...");
    const std::string key(trim(pair.substr(0, equals))), value(trim(pair.substr(equals + 1)));
    if (key == "rank") {
      config.node = number_within(value, 0, kMaxTorchrunRank);
      if (!config.node)
        throw UserError(fmt::format("--rdzv_conf: rank={} is not the number of a host", value),
                        "hosts are numbered from 0");
      continue;
    }
    if (key == "password")
      throw UserError("--rdzv_conf: a password on the command line can be read by every user",
                      "write it into a file that only you can read: password_file=FILE");
    const auto etcd = std::ranges::find_if(kEtcd, [&](const Row& row) { return key == row.key; });
    if (etcd != std::end(kEtcd)) {
      config.etcd[etcd->why] = value;
      continue;
    }
    const Row* known = nullptr;
    for (const Row& row : kNoEffect)
      if (key == row.key) known = &row;
    if (!known)
      throw UserError(fmt::format("--rdzv_conf: there is no key {}", key),
                      "rank=N numbers this host, as --node_rank does; protocol, cacert, cert, key, "
                      "user and password_file are for etcd");
    config.warnings.push_back(fmt::format("--rdzv_conf: {} has no effect: {}", key, known->why));
  }
  return config;
}

EtcdOptions parse_etcd(const std::string& endpoint, const RendezvousConfig& config) {
  constexpr uint16_t kEtcdPort = 2379;
  EtcdOptions o;
  const auto value = [&](const char* key) {
    const auto found = config.etcd.find(key);
    return found == config.etcd.end() ? std::string() : found->second;
  };
  std::string protocol = value("protocol");
  for (const std::string& part : split(endpoint, ',')) {
    std::string server(trim(part));
    if (const size_t scheme = server.find("://"); scheme != std::string::npos) {
      const std::string own = to_lower(server.substr(0, scheme));
      if (!protocol.empty() && protocol != own)
        throw UserError(
            fmt::format("--rdzv_endpoint={}: {} and {} cannot be mixed", endpoint, protocol, own),
            "write all servers with one protocol");
      protocol = own;
      server = server.substr(scheme + 3);
      if (server.ends_with('/')) server.pop_back();
    }
    const Endpoint at = parse_endpoint(server);
    o.servers.push_back({at.host, at.port.value_or(kEtcdPort)});
  }
  o.ca_file = value("cacert");
  o.cert_file = value("cert");
  o.key_file = value("key");
  const bool secured = !o.ca_file.empty() || !o.cert_file.empty() || !o.key_file.empty();
  if (!protocol.empty() && protocol != "http" && protocol != "https")
    throw UserError(fmt::format("etcd is not reached by {}", protocol), "use http or https");
  if (protocol == "http" && secured)
    throw UserError("--rdzv_conf: cacert, cert and key are for https", "add protocol=https");
  o.tls = protocol == "https" || secured;
  if (o.cert_file.empty() != o.key_file.empty())
    throw UserError("--rdzv_conf: cert and key belong together", "cert=FILE,key=FILE");
  for (const std::string& file : {o.ca_file, o.cert_file, o.key_file})
    if (!file.empty() && access(file.c_str(), R_OK) != 0)
      throw UserError(
          fmt::format("--rdzv_conf: {} cannot be read: {}", file, std::strerror(errno)));
  o.user = value("user");
  const std::string password = value("password_file");
  if (o.user.empty() != password.empty())
    throw UserError("--rdzv_conf: user and password_file belong together",
                    "user=NAME,password_file=FILE");
  if (!password.empty()) o.password = read_password_file(password);
  return o;
}

}  // namespace mtrain::launch
