#!/usr/bin/env bash
# Tests that strangers at a job's ports change neither its losses nor its files, and hardly its memory. Then tests
# that ranks find each other however they were started.
#   test/process/hostile_test.sh <mtrain> <mtrain-launch>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
running=()
end_all() {
  ((${#running[@]} == 0)) || kill -KILL "${running[@]}" 2>/dev/null
  for host in 0 1; do ip netns del "mtrain-$$-$host" 2>/dev/null; done
  rm -rf "$work"
}
trap end_all EXIT
unset MTRAIN_TOKEN
failures=0
fail() {
  echo "FAILED: $1"
  [[ -e $work/out ]] && sed 's/^/    /' "$work/out" | tail -n 20
  failures=$((failures + 1))
}
says() { grep -qF -- "$2" "$work/out" || fail "$1: nothing says: $2"; }

seq 1 20000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || exit 1
cat >"$work/r.yaml" <<YAML
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4}
tokenizer: byte
dataset: {train: $work/set, seq_length: 64}
train: {steps: 100000, global_batch_size: 4, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
lr_scheduler: {style: constant}
checkpoint: {every_steps: 25, keep: 0}
mixed_precision: fp32
comm: {timeout_s: 20}
YAML
losses() { sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$work/$1/metrics.jsonl" 2>/dev/null; }
await_steps() {
  local i
  for ((i = 0; i < 600; i++)); do
    (($(losses "$1" | wc -l) >= $2)) && return
    sleep 0.05
  done
  fail "$1 does not come to step $2"
}
free_port() {
  python3 -c "
import random, socket
for _ in range(1000):
    with socket.socket() as s:
        try:
            port = random.randrange(20000, 30000)
            s.bind(('', port))
            print(port)
            break
        except OSError:
            pass"
}
peak_kib() { awk '/^VmHWM/ { print $2 }' "/proc/$1/status"; }

# --- a live job among strangers, with few descriptors ---
mkdir "$work/bait"
for i in 1 2 3; do head -c 5000 /dev/urandom >"$work/bait/$i"; done
bait=$(cd "$work" && sha256sum bait/* set* r.yaml)
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/undisturbed" train.exit_interval=150 \
  >"$work/out" 2>&1 || fail "the undisturbed run"
for backend in auto gloo; do
  run=among_$backend port=$(free_port)
  (ulimit -n 1024 && exec "$launch" --nproc_per_node=2 --master_port="$port" --recipe "$work/r.yaml" \
    "train.run_dir=$work/$run" "comm.backend=$backend") >"$work/out" 2>&1 &
  job=$!
  running=("$job")
  await_steps "$run" 30
  mapfile -t ranks < <(pgrep -f "^[^ ]*mtrain --recipe .*train.run_dir=$work/$run( |$)")
  ((${#ranks[@]} == 2)) || fail "$backend: ${#ranks[@]} ranks"
  ranks+=("$job") # the launcher serves the store
  before=()
  for pid in "${ranks[@]}"; do before+=("$(peak_kib "$pid")"); done
  attack() {
    (ulimit -n 4096 2>/dev/null && exec timeout 60 python3 "$here/hostile.py" attack "$port" "${ranks[@]}") \
      >"$work/attack" 2>&1 || fail "$backend, $1: $(cat "$work/attack")"
  }
  attack "one stranger"
  (ulimit -n 4096 2>/dev/null && exec python3 "$here/hostile.py" flood "$port" 1100) 2>/dev/null &
  flood=$!
  running+=("$flood")
  attack "among others"
  kill "$flood" || fail "$backend: the flood has ended by itself"
  wait "$flood" 2>/dev/null
  await_steps "$run" $(($(losses "$run" | wc -l) + 30)) # a save, too
  for i in 0 1 2; do
    grown=$(($(peak_kib "${ranks[i]}") - before[i]))
    ((grown < 10 * 1024)) || fail "$backend: process $i took $grown KiB more"
  done
  tokens=0
  for pid in "${ranks[@]}"; do
    token=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^MTRAIN_TOKEN=//p')
    [[ -n $token ]] || continue
    tokens=$((tokens + 1))
    grep -qF "$token" "/proc/$pid/cmdline" && fail "$backend: the token is among the arguments"
    grep -rqF "$token" "$work" && fail "$backend: a file holds the token: $(grep -rlF "$token" "$work")"
  done
  ((tokens >= 2)) || fail "$backend: $tokens ranks have a token to look for"
  kill -INT "$job"
  wait "$job" || fail "$backend: the job among strangers ended badly"
  running=()
  n=$(losses "$run" | wc -l)
  ((n > 150)) && n=150
  [[ $(losses "$run" | head -n "$n") == "$(losses undisturbed | head -n "$n")" ]] || fail "$backend: the losses are others"
  last=$(printf 'checkpoints/step-%08d/weights-00000.safetensors' $((n / 25 * 25)))
  cmp -s "$work/undisturbed/$last" "$work/$run/$last" || fail "$backend: $last differs"
  [[ $(cd "$work" && sha256sum bait/* set* r.yaml) == "$bait" ]] || fail "$backend: a file has changed"
done

# --- strangers who reconnect do not keep ranks from meeting ---
# start <port> <name>: sets `best` to the seconds of the fastest of three starts
start() {
  local i began took
  best=
  for i in 1 2 3; do
    began=$EPOCHREALTIME
    "$launch" --nproc_per_node=8 --master_port="$1" --recipe "$work/r.yaml" "train.run_dir=$work/start_$2$i" \
      train.global_batch_size=8 train.steps=1 checkpoint.at_end=false >"$work/out" 2>&1 || fail "start $i, $2"
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
    best=$(awk -v a="${best:-$took}" -v b="$took" 'BEGIN { print a < b ? a : b }')
  done
}
port=$(free_port)
start "$port" alone
alone=$best
(ulimit -n 4096 2>/dev/null && exec python3 "$here/hostile.py" flood "$port" 1100) 2>/dev/null &
running=("$!")
sleep 0.3
start "$port" among
among=$best
kill "${running[@]}" || fail "the flood has ended by itself"
wait "${running[@]}" 2>/dev/null
running=()
echo "start of 8 ranks: $alone s alone, $among s among 1,100 strangers"
awk -v a="$alone" -v b="$among" 'BEGIN { exit !(b - a < 2) }' || fail "strangers delay a start: $among s instead of $alone s"

# --- ranks that others start: the token goes through the run folder, and is gone at the end ---
# starts <what> <address> <run folder> [NAME=VALUE...]: %r stands for the rank
starts() {
  local what=$1 address=$2 folder=$3 rank port status=0
  local -a ranks=()
  port=$(free_port)
  for rank in 0 1; do
    (cd "$work" && exec env "${@:4}" "MASTER_ADDR=$address" "MASTER_PORT=$port" "${variables[@]//%r/$rank}" \
      "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$folder" train.steps=3 comm.timeout_s=10 >"$work/out$rank" 2>&1) &
    ranks+=("$!")
  done
  for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
  cat "$work/out0" "$work/out1" >"$work/out"
  ((status == 0)) || fail "$what: the ranks do not train"
  [[ ! -e $work/$folder/.token ]] || fail "$what: the token is left"
}
variables=(RANK=%r LOCAL_RANK=%r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 TORCHELASTIC_RESTART_COUNT=0
  TORCHELASTIC_USE_AGENT_STORE=True)
starts "torchrun" localhost runs/torchrun
variables=(SLURM_PROCID=%r SLURM_NTASKS=2 SLURM_LOCALID=%r SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NUM_TASKS=2
  SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost)
starts "srun" localhost runs/srun
variables=(OMPI_COMM_WORLD_RANK=%r OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=%r OMPI_COMM_WORLD_LOCAL_SIZE=2)
starts "mpirun" localhost runs/mpirun
# Two hosts: no rank knows the other's host, and they meet at an address that is not 127.0.0.1.
variables=(RANK=%r LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1)
starts "two hosts" 127.0.0.2 runs/hosts
for what in torchrun srun mpirun hosts; do
  [[ -n $(losses "runs/$what") && $(losses "runs/$what") == "$(losses undisturbed | head -n 3)" ]] || fail "$what: other losses"
done
port=$(free_port)
"$launch" --nnodes=2 --node_rank=0 --nproc_per_node=1 --master_addr=127.0.0.1 --local_addr=127.0.0.1 --master_port="$port" --recipe "$work/r.yaml" \
  "train.run_dir=$work/runs/launchers" train.steps=3 >"$work/out0" 2>&1 &
running=("$!")
"$launch" --nnodes=2 --node_rank=1 --nproc_per_node=1 --master_addr=127.0.0.1 --local_addr=127.0.0.1 --master_port="$port" --recipe "$work/r.yaml" \
  "train.run_dir=$work/runs/launchers" train.steps=3 >"$work/out" 2>&1 || fail "two launchers"
wait "${running[@]}" || fail "the first of two launchers"
running=()

# Two hosts with addresses of their own, where this user may make network namespaces.
in_host() { ip netns exec "mtrain-$$-$1" "${@:2}"; }
if ip netns add "mtrain-$$-0" 2>/dev/null && ip netns add "mtrain-$$-1" &&
  ip link add v0 netns "mtrain-$$-0" type veth peer name v1 netns "mtrain-$$-1"; then
  for host in 0 1; do
    in_host $host ip addr add "10.9.0.$((host + 1))/24" dev v$host
    in_host $host ip link set v$host up
    in_host $host ip link set lo up
  done
  for host in 0 1; do
    ip netns exec "mtrain-$$-$host" "$launch" --nnodes=2 --node_rank=$host --nproc_per_node=1 --master_addr=10.9.0.1 \
      --master_port=29500 --recipe "$work/r.yaml" "train.run_dir=$work/runs/networks" comm.backend=gloo >"$work/out$host" 2>&1 &
    running+=("$!")
  done
  await_steps runs/networks 1
  in_host 0 python3 -c "
import sys
at = [w[1].split(':')[0] for f in ('tcp', 'tcp6') for w in (l.split() for l in open('/proc/net/' + f)) if w[3] == '0A']
sys.exit(at != ['0100090A'])" || fail "two networks: rank 0 listens elsewhere than at 10.9.0.1"
  kill -INT "${running[@]}"
  for host in 0 1; do wait "${running[host]}" || fail "two networks: $(cat "$work/out$host")"; done
  running=()
  [[ ! -e $work/runs/networks/.token ]] || fail "two networks: the token is left"
else
  echo "no network namespaces here: two hosts are two addresses of one"
fi

# --- the two other ways to get a token, and the error if all three fail ---
token=$(printf '%064x' 77)
(umask 077 && echo "$token" >"$work/secret")
variables=(RANK=%r WORLD_SIZE=2)
starts "MTRAIN_TOKEN" 127.0.0.1 runs/variable "MTRAIN_TOKEN=$token"
port=$(free_port)
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --token_file "$work/secret" --recipe "$work/r.yaml" \
    "train.run_dir=$work/runs/file" train.steps=3 >"$work/out$rank" 2>&1 || cat "$work/out$rank" >"$work/out.failed" &
done
wait
[[ ! -e $work/out.failed ]] || fail "--token_file: $(cat "$work/out.failed")"
chmod 644 "$work/secret"
RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --token_file "$work/secret" --recipe "$work/r.yaml" \
  "train.run_dir=$work/runs/file" >"$work/out" 2>&1
(($? == 2)) || fail "a token file that others can read: another exit code than 2"
says "a token file that others can read" "can be used by others (mode 0644"
RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/runs/none" \
  comm.timeout_s=1 >"$work/out" 2>&1
(($? == 1)) || fail "no token: another exit code than 1"
for way in "has no token of the job after 1 s" MTRAIN_TOKEN --token_file train.run_dir; do says "no token" "$way"; done
((failures == 0)) && echo "all well"
exit $((failures > 0))
