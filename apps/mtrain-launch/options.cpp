#include "options.h"

#include <unistd.h>
#include <algorithm>
#include <set>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "recipe/load/flags.h"
#include "recipe/load/raw_settings.h"

namespace mtrain {

namespace {

// torchrun's default ports: for an endpoint without a port, and for --master_addr on several hosts.
constexpr uint16_t kEndpointPort = 29400, kMasterPort = 29500;

// The values of the options as the user wrote them.
struct Words {
  std::string nproc = "1", nnodes = "1", endpoint, backend, config, id, redirects = "0", tee = "0";
  std::string token_file, shown, role = "default", start_method, local_addr, log_dir, event_log,
                                 logs_specs;
  std::string master_addr, node_rank, numa, signals;
  std::optional<uint16_t> master_port, metrics_port;
  std::string metrics_host;
  int max_restarts = 0;
  double monitor_interval = 0, timeout = 600;
  bool standalone = false, no_python = false, module = false, run_path = false;
};

// Adds an option under both of torchrun's spellings, with its environment variable.
template <class T>
CLI::Option* add(CLI::App& app, const std::string& dashes, T& to, const std::string& help,
                 const std::string& short_name = "") {
  std::string underscores = dashes, variable = "PET_";
  for (char& c : underscores) c = c == '-' ? '_' : c;
  for (const char c : underscores) variable += char(std::toupper(c));
  std::string names = "--" + underscores;
  if (underscores != dashes) names += ",--" + dashes;
  if (!short_name.empty()) names = short_name + "," + names;
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, bool>)
    option = app.add_flag(names, to, help);
  else
    option = app.add_option(names, to, help);
  return option->envname(variable);
}

void add_ranks_and_hosts(CLI::App& app, Words& w) {
  const char* group = "Ranks and hosts";
  add(app, "nproc-per-node", w.nproc, "ranks on this host: a number, auto, gpu or cpu")
      ->capture_default_str()
      ->group(group);
  add(app, "nnodes", w.nnodes,
      "number of hosts, or MIN:MAX: the job then trains with the hosts that are there, continues "
      "without a host that is lost, and takes up hosts that come later")
      ->capture_default_str()
      ->group(group);
  add(app, "node-rank", w.node_rank, "number of this host, from 0")->group(group);
  add(app, "master-addr", w.master_addr, "host of rank 0; by default localhost")->group(group);
  add(app, "master-port", w.master_port,
      "port of rank 0 at which the ranks meet; by default a free one, on several hosts 29500")
      ->check(integer_from(0, 65535, 29500).description(""))
      ->group(group);
  add(app, "rdzv-endpoint", w.endpoint,
      "address and port in one option: host, host:port or [::1]:port; the default port is 29400; "
      "port 0: a free one; for etcd: host:port,... or https://host:port, by default port 2379")
      ->group(group);
  add(app, "rdzv-backend", w.backend,
      "store, c10d or static: the ranks meet at the address above, and host 0 leads; etcd: the "
      "address is that of etcd, through which the launchers elect the one that leads, so a job of "
      "MIN:MAX hosts survives the loss of any host")
      ->group(group);
  add(app, "rdzv-id", w.id,
      "name of the job, the same on every host; ranks see it as TORCHELASTIC_RUN_ID")
      ->group(group);
  add(app, "rdzv-conf", w.config,
      "key=value,...; rank=N numbers this host; for etcd: protocol, cacert, cert, key, user, "
      "password_file")
      ->group(group);
  add(app, "rdzv-timeout", w.timeout,
      "seconds that a host waits for host 0, and that a job of MIN:MAX hosts waits for enough of "
      "them")
      ->check(CLI::Range(1.0, 1e6).description(""))
      ->capture_default_str()
      ->group(group);
  add(app, "standalone", w.standalone, "one host, a free port (the default)")->group(group);
  add(app, "token-file", w.token_file,
      "file of 64 hexadecimal digits, the same on every host, with which the ranks authenticate "
      "each other (or MTRAIN_TOKEN); by default the hosts share one through the run folder")
      ->type_name("FILE")
      ->group(group);
  add(app, "local-addr", w.local_addr,
      "address of this host; on host 0 the default of --master_addr; with etcd the address at "
      "which "
      "other hosts reach this one; 127.0.0.1: for a test, all hosts are this machine")
      ->group(group);
  add(app, "numa-binding", w.numa,
      "bind each rank to CPUs. node: those of the NUMA node of its GPU; without GPUs the ranks are "
      "divided over the nodes; socket: all CPUs of the socket of that node; exclusive: cores of "
      "the node that no other rank has; core-complex: CPUs of the node that share their largest "
      "cache; by default ranks are not bound")
      ->check(one_of({"node", "socket", "exclusive", "core-complex"}))
      ->group(group);
}

void add_watching(CLI::App& app, Words& w) {
  add(app, "max-restarts", w.max_restarts,
      "restart all ranks after a failure, at most this often: from the newest checkpoint that the "
      "run has saved, or else from where the run began; the first restart follows at once, later "
      "ones wait 1 s, then twice as long each time, at most 30 s; on several hosts a new "
      "checkpoint begins the count again, and --nnodes=MIN:MAX has the default 3")
      ->check(integer_from(0, 1000000))
      ->capture_default_str()
      ->group("Failures");
  const char* group = "Output";
  add(app, "log-dir", w.log_dir,
      "folder for the ranks' output, with a new folder attempt_N for each start. A file has at "
      "most 64 MiB; of each stream the last five are kept. Without --redirects and --tee, stdout "
      "and stderr of all ranks are written "
      "there and also printed")
      ->group(group);
  add(app, "redirects", w.redirects,
      "1: stdout into files, 2: stderr, 3: both; 0:3,1:2 only for ranks 0 and 1 of this host", "-r")
      ->group(group);
  add(app, "tee", w.tee, "like --redirects, and also print the output", "-t")->group(group);
  add(app, "local-ranks-filter", w.shown,
      "ranks of this host whose output is printed, such as 0,2; by default all")
      ->group(group);
  add(app, "metrics-port", w.metrics_port,
      "serve the state of the job and of this host's ranks to Prometheus at this port (/metrics, "
      "/healthz); port 0: a free one; by default off")
      ->check(integer_from(0, 65535, 9400).description(""))
      ->group(group);
  add(app, "metrics-host", w.metrics_host,
      "address at which --metrics_port listens; by default 127.0.0.1, which only this host "
      "reaches. Whoever reaches it may read the metrics")
      ->group(group);
  add(app, "role", w.role, "variable ROLE_NAME of the ranks")->capture_default_str()->group(group);
}

void add_without_effect(CLI::App& app, Words& w) {
  const char* group = "Options of torchrun that are not needed here";
  add(app, "no-python", w.no_python, "ranks are always programs")->group(group);
  add(app, "monitor-interval", w.monitor_interval,
      "no effect: the end of a rank is noticed at once")
      ->group(group);
  add(app, "start-method", w.start_method, "no effect: each rank is a program of its own")
      ->check(one_of({"spawn", "fork", "forkserver"}))
      ->group(group);
  add(app, "signals-to-handle", w.signals,
      "no effect: all signals that ask a job to end are passed to the ranks")
      ->group(group);
  add(app, "module", w.module,
      "-m mtrain is mtrain itself; other modules are refused: ranks are programs", "-m")
      ->group(group);
  add(app, "run-path", w.run_path, "refused: ranks are programs, not Python scripts")->group(group);
  add(app, "event-log-handler", w.event_log, "refused, except for null")->group(group);
  add(app, "logs-specs", w.logs_specs, "refused, except for default")->group(group);
}

// The modules that are mtrain itself: `-m mtrain --recipe r.yaml` is `mtrain --recipe r.yaml`.
bool is_own_module(const std::string& name) { return name == "mtrain" || name == "mtrain.train"; }

void refuse_python(const Words& w, const std::vector<std::string>& rest) {
  if (w.run_path)
    throw UserError("--run_path runs a Python script, but ranks are programs",
                    "mtrain-launch ... python3 script.py runs one as a program");
  if (!w.module || (!rest.empty() && is_own_module(rest.front()))) return;
  const std::string module = rest.empty() ? "MODULE" : rest.front();
  throw UserError(
      fmt::format("-m {} runs a Python module, but ranks are programs", module),
      fmt::format("mtrain needs no module: mtrain-launch ... r.yaml; python3 -m {} after the "
                  "options runs the module as a program",
                  module));
}

void refuse(const Words& w) {
  if (w.backend == "etcd-v2")
    throw UserError("--rdzv_backend=etcd-v2: version 2 of etcd's interface is not supported",
                    "use etcd, which speaks version 3; etcd 3.4 and later have it");
  const auto backends = {"", "store", "c10d", "static", "etcd"};
  if (std::ranges::count(backends, w.backend) == 0)
    throw UserError(fmt::format("--rdzv_backend={}: not a way to meet", w.backend),
                    "use store (c10d and static mean the same) or etcd");
  if (!w.event_log.empty() && w.event_log != "null")
    throw UserError(fmt::format("--event_log_handler={}: no such handler", w.event_log),
                    "leave it out; events are printed");
  if (!w.logs_specs.empty() && w.logs_specs != "default")
    throw UserError(fmt::format("--logs_specs={}: no such class of logs", w.logs_specs),
                    "use --log_dir, --redirects, --tee and --local_ranks_filter");
}

void warn_of_idle(const CLI::App& app, const Words& w, LaunchOptions& o) {
  if (app.get_option("--monitor_interval")->count())
    o.warnings.push_back("--monitor_interval has no effect: the end of a rank is noticed at once");
  if (!w.start_method.empty())
    o.warnings.push_back("--start_method has no effect: each rank is a program of its own");
  if (!w.signals.empty())
    o.warnings.push_back(
        "--signals_to_handle has no effect: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 "
        "are always passed on");
  const std::set<std::string> known = [&] {
    std::set<std::string> names;
    for (const CLI::Option* option : app.get_options()) names.insert(option->get_envname());
    return names;
  }();
  for (char** e = environ; *e; ++e) {
    const std::string_view v(*e);
    const std::string name(v.substr(0, v.find('=')));
    if (name.starts_with("PET_") && !known.contains(name))
      o.warnings.push_back(name + " has no effect: there is no such option");
  }
}

// Refuses a first word that is similar to an option of the launcher. The first word that the
// launcher does not know, and all later words, belong to mtrain.
void refuse_misspelt(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty() || !rest[0].starts_with("--") || rest[0].size() < 4) return;
  const std::string name = rest[0].substr(0, rest[0].find('='));
  const std::vector<std::string> own = recipe::own_options();
  if (std::ranges::count(own, name) > 0 || recipe::names_setting(name.substr(2))) return;
  if (const std::string meant = nearest_option(app, name); !meant.empty())
    throw UserError(fmt::format("{}: mtrain-launch has no such option", name), meant);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Sets how the launchers of several hosts elect one through etcd.
void set_etcd(const Words& w, const launch::RendezvousConfig& config, LaunchOptions& o) {
  launch::AgentOptions& a = o.agent;
  if (w.standalone || a.nodes == 1) {
    o.warnings.push_back("--rdzv_backend=etcd has no effect for one host");
    return;
  }
  if (w.endpoint.empty())
    throw UserError("--rdzv_backend=etcd needs the address of etcd",
                    "--rdzv_endpoint=HOST:2379, or several servers of a cluster with commas");
  if (w.id.empty())
    throw UserError("--rdzv_backend=etcd needs the name of the job: one etcd serves many jobs",
                    "--rdzv_id=NAME, the same on every host");
  if (!w.master_addr.empty())
    o.warnings.push_back("--master_addr has no effect with etcd: the launcher that leads has it");
  a.etcd = launch::parse_etcd(w.endpoint, config);
  const bool is_far =
      !std::ranges::all_of(a.etcd->servers, is_loopback, [](const auto& s) { return s.host; });
  if (!a.etcd->user.empty() && !a.etcd->tls && is_far)
    o.warnings.push_back(
        "the password for etcd crosses the network in plain text: use https in --rdzv_endpoint");
  if (!w.local_addr.empty()) a.etcd->own_address = launch::parse_host("--local_addr", w.local_addr);
  a.master_addr = "localhost";  // for what a host does alone, such as --dry-run
  a.master_port = w.master_port.value_or(0);
}

// torchrun numbers hosts itself, or treats each of them as host 0.
void check_numbered(const Words& w, const launch::RendezvousConfig& config, int nodes) {
  if (w.node_rank.empty() && !config.node)
    throw UserError(
        fmt::format("--node_rank is needed with --nnodes={}: hosts do not number themselves",
                    nodes),
        fmt::format("give --node_rank=0 on the host of the address, {} on the other{}",
                    nodes == 2 ? "--node_rank=1" : fmt::format("1 to {}", nodes - 1),
                    nodes == 2 ? "" : "s"));
}

// Sets the address of the rendezvous, and the host's number.
void set_rendezvous(const Words& w, LaunchOptions& o) {
  launch::AgentOptions& a = o.agent;
  const launch::NodeRange nodes = launch::parse_nodes(w.nnodes);
  a.nodes = nodes.most;
  a.min_nodes = nodes.least;
  a.rendezvous_timeout = std::chrono::milliseconds(int64_t(w.timeout * 1000));
  const launch::RendezvousConfig config = launch::parse_rendezvous_config(w.config);
  o.warnings.insert(o.warnings.end(), config.warnings.begin(), config.warnings.end());
  if (!w.node_rank.empty()) {
    if (!CLI::detail::lexical_cast(w.node_rank, a.node) || a.node < 0)
      throw UserError(fmt::format("--node_rank={} is not the number of a host", w.node_rank),
                      "hosts are numbered from 0");
    if (config.node && *config.node != a.node)
      throw UserError(
          fmt::format("--node_rank={} and --rdzv_conf=rank={} differ", a.node, *config.node),
          "leave one of the two out");
  } else if (config.node) {
    a.node = *config.node;
  }
  if (w.standalone && !w.master_addr.empty())
    o.warnings.push_back(
        "--master_addr has no effect with --standalone: the ranks meet on this host");
  if (w.standalone && a.nodes > 1)
    throw UserError("--standalone is for one host, but --nnodes is " + std::to_string(a.nodes),
                    "leave one of the two out");
  if (a.node >= a.nodes)
    throw UserError(fmt::format("--node_rank={} is beyond the last of {} hosts", a.node, a.nodes),
                    "hosts are numbered from 0");
  if (w.backend == "etcd") {
    set_etcd(w, config, o);
    if (a.nodes > 1) check_numbered(w, config, a.nodes);
    return;
  }
  if (!config.etcd.empty())
    o.warnings.push_back(fmt::format("--rdzv_conf: {} has no effect: it is for --rdzv_backend=etcd",
                                     config.etcd.begin()->first));
  if (!w.master_addr.empty() && !w.standalone)
    a.master_addr = launch::parse_host("--master_addr", w.master_addr);
  if (w.master_addr.empty() && w.endpoint.empty() && !w.local_addr.empty()) {
    if (a.node == 0)
      a.master_addr = launch::parse_host("--local_addr", w.local_addr);
    else
      o.warnings.push_back("--local_addr has no effect: only host 0 is connected to");
  }
  a.master_port = w.master_port.value_or(a.nodes > 1 && !w.master_addr.empty() ? kMasterPort : 0);
  if (w.standalone && !w.endpoint.empty()) {
    o.warnings.push_back("--rdzv_endpoint has no effect with --standalone");
  } else if (!w.endpoint.empty()) {
    const launch::Endpoint endpoint = launch::parse_endpoint(w.endpoint);
    a.master_addr = endpoint.host;
    a.master_port = endpoint.port.value_or(kEndpointPort);
  }
  if (a.nodes == 1) return;
  // On one machine, --local_addr confirms that the loopback address is intended.
  const bool given = !(w.master_addr.empty() && w.endpoint.empty());
  if (given && is_loopback(a.master_addr) &&
      !is_loopback(launch::parse_host("--local_addr", w.local_addr)))
    throw UserError(
        fmt::format("{} means each of the {} hosts itself, so they would never meet", a.master_addr,
                    a.nodes),
        "set --master_addr to the name or address by which all hosts reach host 0; to try it with "
        "all launchers on one machine, add --local_addr=127.0.0.1");
  if (a.master_port == 0 || a.master_addr == "localhost")
    throw UserError("the ranks of several hosts need a common address to meet",
                    "give --master_addr and --master_port, the same on every host; port 0 is for "
                    "one host");
  check_numbered(w, config, a.nodes);
}

}  // namespace

std::optional<LaunchOptions> read_options(int argc, char** argv, int& exit_code) {
  CLI::App app("mtrain-launch starts the ranks of a job on this host and watches over them.",
               "mtrain-launch");
  app.prefix_command();
  fit_help(app);
  set_examples(app,
               {"mtrain-launch --nproc_per_node=2 recipes/quickstart.yaml train.steps=100",
                "mtrain-launch --nproc_per_node=2 quickstart --dry-run",
                "mtrain-launch --nproc_per_node=2 --log_dir logs quickstart train.steps=20",
                "mtrain-launch --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=node0 "
                "--master_port=29500 llama3_8b"});
  Words w;
  add_ranks_and_hosts(app, w);
  add_watching(app, w);
  add_without_effect(app, w);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    throw command_line_error(app, e);
  }
  refuse_python(w, app.remaining());
  refuse(w);
  refuse_misspelt(app);
  LaunchOptions o;
  warn_of_idle(app, w, o);
  set_rendezvous(w, o);
  launch::AgentOptions& a = o.agent;
  constexpr int kElasticRestarts = 3;
  const bool restarts_given = app.get_option("--max_restarts")->count() > 0;
  a.max_restarts = a.is_elastic() && !restarts_given ? kElasticRestarts : w.max_restarts;
  a.redirects = launch::parse_streams("--redirects", w.redirects);
  a.tee = launch::parse_streams("--tee", w.tee);
  a.shown_ranks = launch::parse_local_ranks(w.shown);
  using launch::NumaBinding;
  if (!w.numa.empty())
    a.numa_binding = pick<NumaBinding>(w.numa, {{"node", NumaBinding::node},
                                                {"socket", NumaBinding::socket},
                                                {"exclusive", NumaBinding::exclusive},
                                                {"core-complex", NumaBinding::core_complex}});
  a.role = w.role;
  a.run_id = w.id;
  a.log_dir = w.log_dir;
  if ((a.redirects.any() || a.tee.any()) && a.log_dir.empty()) a.log_dir = "logs";
  // torchrun would write nothing, but a user who names the folder expects files in it.
  if (!a.log_dir.empty() && !app.count("--redirects") && !app.count("--tee"))
    a.tee = launch::parse_streams("--tee", "3");
  a.ranks_per_node = launch::ranks_per_node(w.nproc);
  o.token_file = w.token_file;
  o.metrics_port = w.metrics_port;
  if (!w.metrics_host.empty()) {
    o.metrics_host = launch::parse_host("--metrics_host", w.metrics_host);
    if (!w.metrics_port)
      o.warnings.push_back("--metrics_host has no effect without --metrics_port");
  }
  o.rest = app.remaining();
  if (w.module) {
    if (o.rest.front() == "mtrain.train") o.rest.insert(o.rest.begin() + 1, "train");
    o.rest.front() = "mtrain";
  }
  return o;
}

}  // namespace mtrain
