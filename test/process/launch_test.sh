#!/usr/bin/env bash
# Tests mtrain-launch with real processes: ranks train as one does, and a rank that dies is named within seconds.
#   test/process/launch_test.sh <mtrain> <mtrain-launch>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2")
work=$(mktemp -d)
trap 'pkill -KILL -f "$work" 2>/dev/null; rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  [[ -e $work/out ]] && sed 's/^/    /' "$work/out" | tail -n 30
  failures=$((failures + 1))
}
token=$(printf '%064x' 7) # of ranks that share no folder
says() { grep -qF -- "$2" "$work/out" || fail "$1: nothing says: $2"; }

seq 1 40000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || fail "data build"
cat >"$work/r.yaml" <<YAML
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4}
tokenizer: byte
dataset: {train: $work/set, seq_length: 64}
train: {steps: 6, global_batch_size: 4, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
mixed_precision: fp32
comm: {timeout_s: 20}
YAML
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" --dry-run "dataset.train=$work/nowhere" >"$work/out" 2>&1 ||
  fail "a dry run without data"
[[ $(grep -c "dry run on 2 ranks" "$work/out") == 1 ]] || fail "a dry run under the launcher is not printed once"
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/large" train.steps=1 hardware.memory_gb=0.001 \
  >"$work/out" 2>&1 || fail "a run that exceeds the planned memory"
says "a run that exceeds the planned memory" "each of the 2 ranks needs"
[[ $(grep -c "the plan does not fit" "$work/out") == 1 ]] || fail "a plan that does not fit is not reported once"
if "$mtrain" --version | grep -q "cuda *not in this build"; then
  "$mtrain" --recipe "$work/r.yaml" train.device=cuda >"$work/out" 2>&1
  says "a GPU's run in a build without CUDA" "set train.device=cpu and comm.backend=auto"
fi
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/traced" train.steps=1 --trace "$work/trace.json" >"$work/out" 2>&1 ||
  fail "a run with a trace"
grep -q '"pass":"B","stage":0,"micro_batch":3' "$work/trace.json" || fail "a trace without its passes"
"$mtrain" timeline "$work/trace.json" --columns 160 >"$work/out" && says "a timeline" "passes" && says "a timeline" "F0"
# Without mtrain-launch, the run itself tells the command of launch.on_event.
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/told" "launch.on_event=[sh, -c, 'cat >>$work/told.events']" \
  "debug.fault={kind: exception, phase: backward, step: 2}" >"$work/out" 2>&1 && fail "a run that fails"
[[ $(sed 's/.*"event":"\([a-z]*\)".*/\1/' "$work/told.events" | tr '\n' ' ') == "start failure end " ]] ||
  fail "events of a run that fails: $(cat "$work/told.events")"
grep -q '"event":"end".*"exit_code":1' "$work/told.events" || fail "the end of a run that fails: $(cat "$work/told.events")"
losses() { sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl"; }
# start <name> <ranks> <setting>...: starts a training in the background, whose process is $pid
start() {
  local name=$1 ranks=$2
  shift 2
  "$launch" --nproc_per_node="$ranks" --recipe "$work/r.yaml" "train.run_dir=$work/$name" "$@" >"$work/out" 2>&1 &
  pid=$!
}
# Waits until the run has made so many steps.
await_steps() {
  local i
  for ((i = 0; i < 600; i++)); do
    [[ -e $work/$1/metrics.jsonl ]] && (($(losses "$work/$1" | wc -l) >= $2)) && return
    sleep 0.05
  done
  fail "$1 does not come to step $2"
}
rank_pid() { pgrep -f "^[^ ]*mtrain --recipe .*train.run_dir=$work/$1( |$)" | sed -n "$(($2 + 1))p"; }
none_left() {
  local i
  for ((i = 0; i < 50; i++)); do
    pgrep -f "train.run_dir=$work/$1" >/dev/null || return
    sleep 0.1
  done
  fail "$1: processes are left: $(pgrep -af "train.run_dir=$work/$1")"
}
# same_losses <what> <run> <reference run> <relative bound>: compares the losses of six steps
same_losses() {
  paste <(losses "$work/$3") <(losses "$work/$2") |
    awk -v bound="$4" '{ d = $1 - $2; if (d < 0) d = -d; if (d > bound * $1) bad = 1; n++ } END { exit bad || n != 6 }' ||
    fail "$1 lose otherwise than $3: $(losses "$work/$2" | tr '\n' ' ')"
}
# Prints a free port, which not even a connection that just ended holds, below the ports of outgoing connections.
free_port() {
  python3 -c "
import random, socket
for _ in range(1000):
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as s:
        try:
            port = random.randrange(20000, 30000)
            s.bind(('', port))
            print(port)
            break
        except OSError:
            pass"
}
# ends <what> <exit code> <most seconds>
ends() {
  local began=$SECONDS code
  wait "$pid"
  code=$?
  ((code == $2)) || fail "$1: exit code $code instead of $2"
  ((SECONDS - began <= $3)) || fail "$1: took $((SECONDS - began)) s"
}

# --- several ranks have the losses of one ---
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/one" >"$work/out" 2>&1 || fail "one rank"
for ranks in 2 4; do
  start "ranks$ranks" "$ranks"
  ends "$ranks ranks" 0 60
  same_losses "$ranks ranks" "ranks$ranks" one 1e-5
done
none_left ranks4
start narrow 2 mixed_precision=bf16_mixed
ends "2 ranks in bf16" 0 60
same_losses "2 ranks in bf16" narrow one 2e-2

# --- a model is evaluated, and continues a prompt, alike on one rank and on two ---
nats() { sed -n 's/ nats per token.*//p' "$work/out"; }
"$mtrain" eval --model "$work/one" --data "$work/set" --stride 48 >"$work/out" 2>&1 || fail "eval on one rank"
one_nats=$(nats)
tensor=('~ddp' distributed.strategy=megatron_ddp distributed.tp_size=2)
pipeline=('~ddp' distributed.strategy=megatron_ddp distributed.pp_size=2 'distributed.pipeline={}')
sharded=('~ddp' distributed.strategy=fsdp2)
for layout in tensor pipeline sharded; do
  declare -n layout_settings=$layout
  "$launch" --nproc_per_node=2 mtrain eval --model "$work/one" --data "$work/set" --stride 48 "${layout_settings[@]}" \
    >"$work/out" 2>&1 || fail "eval over $layout ranks"
  awk -v a="$one_nats" -v b="$(nats)" 'BEGIN { d = a - b; exit !(a > 0 && d <= 1e-5 * a && -d <= 1e-5 * a) }' ||
    fail "eval over $layout ranks gives $(nats) instead of $one_nats"
done
prompt=(--run "$work/one" --prompt "1234" --tokens 20 --temperature 0)
"$mtrain" generate "${prompt[@]}" >"$work/one_text" 2>&1 || fail "generate on one rank"
"$launch" --nproc_per_node=2 mtrain generate "${prompt[@]}" >"$work/out" 2>&1 || fail "generate over two ranks"
cmp -s "$work/out" "$work/one_text" || fail "two ranks generate otherwise than: $(cat "$work/one_text")"

# --- gloo gives the losses of shared memory ---
start gloo 2 comm.backend=gloo
ends "2 ranks over gloo" 0 60
same_losses "2 ranks over gloo" gloo ranks2 1e-5
none_left gloo

# --- tensor and sequence parallelism, its communication hidden, as one rank in bf16 ---
start tensor 4 mixed_precision=bf16_mixed distributed.strategy=fsdp2 distributed.tp_size=2 distributed.sequence_parallel=true \
  comm_overlap.tp_comm_overlap=true comm_overlap.tp_comm_overlap_cfg='{qkv_fprop: {}, proj_fprop: {}}'
ends "4 ranks of tp 2" 0 60
same_losses "4 ranks of tp 2" tensor one 2e-2
says "the banner" "qkv_fprop: ring_exchange -> ring_exchange"
grep -q '"comm.tp.exposed_ms"' "$work/tensor/metrics.jsonl" || fail "the exposed time of tp is missing"
none_left tensor

# --- the metrics name the rank that computes longest and needs most memory: here the one with all layers ---
start uneven 2 distributed.strategy=megatron_ddp distributed.pp_size=2 'distributed.pipeline.layout=E|ttL'
ends "2 ranks with uneven stages" 0 60
python3 - "$work/uneven/metrics.jsonl" <<'PY' >"$work/out" 2>&1 || fail "largest figures of ranks"
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
assert len(steps) == 6, len(steps)
for s in steps:
    for key in ("step_ms", "memory_peak", "compute.busy_ms"):
        assert s[key + ".max"] >= s[key] > 0, (key, s)
        assert s[key + ".max_rank"] in (0, 1), (key, s)
    for category in ("params", "grads", "optimizer", "activations"):
        assert s[f"memory_peak.{category}.max"] > s[f"memory_peak.{category}"] > 0, (category, s)
    assert s["memory_peak.buffers.max"] >= s["memory_peak.buffers"], s
    exposed = sum(v for k, v in s.items() if k.startswith("comm.") and k.endswith(".exposed_ms"))
    assert s["comm.exposed_ms.max"] > exposed - 1e-6, s
    assert s["compute.busy_ms.max_rank"] == s["memory_peak.max_rank"] == 1, s
PY
none_left uneven

# --- experts over ranks have the losses of one rank; a killed rank is named ---
experts=(model.moe.num_experts=4 model.moe.ffn_hidden_size=64 model.moe.load_balancing_type=aux_loss
  model.moe.aux_loss_coeff=0.01 distributed.strategy=fsdp2)
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/experts1" "${experts[@]}" >"$work/out" 2>&1 || fail "one rank of experts"
for backend in auto gloo; do
  start "experts_$backend" 4 "${experts[@]}" distributed.ep_size=2 "comm.backend=$backend" --verbose
  ends "4 ranks of ep 2 over $backend" 0 60
  same_losses "4 ranks of ep 2 over $backend" "experts_$backend" experts1 1e-5
  says "the banner" "ep by alltoall"
  grep -q '"moe.host_wait_ms"' "$work/experts_$backend/metrics.jsonl" || fail "the hosts' wait for rows is missing"
  # Ranks that share memory know how long they waited for each other; over gloo that time is unknown, not 0.
  case $backend in auto) idle='[0-9]' line=' s idle' ;; gloo) idle='null' line='idle unknown' ;; esac
  grep -q "\"comm.ep.idle_ms\":$idle" "$work/experts_$backend/metrics.jsonl" || fail "comm.ep.idle_ms over $backend is no $idle"
  says "--verbose over $backend" "$line"
  grep -qE "^communication: [0-9.]+ % of a step exposed.* idle.*, 4 steps timed" "$work/out" || fail "the last line over $backend"
  start "experts_killed_$backend" 2 "${experts[@]}" distributed.ep_size=2 train.steps=100000 "comm.backend=$backend"
  await_steps "experts_killed_$backend" 3
  kill -KILL "$(rank_pid "experts_killed_$backend" 1)"
  ends "a killed rank of ep over $backend" 1 10
  grep -qE "rank 1 \(pid [0-9]+\) was killed by signal 9" "$work/out" || fail "a killed rank of ep over $backend is not named"
  none_left "experts_killed_$backend"
  start "experts_hang_$backend" 2 "${experts[@]}" distributed.ep_size=2 train.steps=100000 "comm.backend=$backend" \
    comm.timeout_s=2 comm_overlap.overlap_moe_expert_parallel_comm=true train.micro_batch_size=1 \
    "debug.fault={at: all_to_all, rank: 1, step: 3, kill: false}"
  ends "a rank of ep that hangs over $backend" 1 15
  grep -qE "rank 1 .*(did not arrive|does not answer)" "$work/out" || fail "a rank of ep that hangs over $backend is not named"
  grep -qE "all_to_all.* in 0[FB][0-9]+ > layers\.[0-9]+\.(dispatch|combine)" "$work/out" ||
    fail "the exchange in which a rank of ep hangs over $backend is not named"
  none_left "experts_hang_$backend"
done

# --- checkpoints as Hugging Face folders: under every layout that of `mtrain export hf`; a run begins with it ---
consolidated=(checkpoint.save_consolidated=every checkpoint.every_steps=3)
spread_experts=("${experts[@]}" distributed.ep_size=2)
for layout in tensor pipeline sharded spread_experts; do
  declare -n layout_settings=$layout
  start "hf_$layout" 2 "${layout_settings[@]}" "${consolidated[@]}"
  ends "Hugging Face forms over $layout ranks" 0 60
  for step in 3 6; do
    checkpoint=$work/hf_$layout/checkpoints/step-0000000$step
    says "the log over $layout ranks" "saved $checkpoint/consolidated for transformers"
    "$mtrain" export hf "$checkpoint" --output "$work/hf_export_$layout$step" >/dev/null || fail "an export of $checkpoint"
    diff -r "$checkpoint/consolidated" "$work/hf_export_$layout$step" >/dev/null ||
      fail "$checkpoint/consolidated is not an export of the checkpoint"
  done
  alone=()
  for setting in "${layout_settings[@]}"; do [[ $setting == model.* ]] && alone+=("$setting"); done
  "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/hf_from1_$layout" "model.from=$checkpoint/consolidated" "${alone[@]}" \
    >"$work/out" 2>&1 || fail "a run from $checkpoint/consolidated"
  start "hf_from2_$layout" 2 "${layout_settings[@]}" "model.from=$checkpoint/consolidated"
  ends "a run from $checkpoint/consolidated over $layout ranks" 0 60
  same_losses "runs from a Hugging Face form over $layout ranks" "hf_from2_$layout" "hf_from1_$layout" 1e-5
done
# A run that resumes does not need the folder from which it began.
checkpoint=$work/hf_tensor/checkpoints/step-00000006
mv "$checkpoint/consolidated" "$work/hf_away"
start hf_from2_tensor 2 "${tensor[@]}" "model.from=$checkpoint/consolidated" checkpoint.load=latest train.steps=7
ends "a run from a folder that is gone" 0 60
says "a run from a folder that is gone" "continuing after step 6"
start hf_gone 2 "${tensor[@]}" "model.from=$checkpoint/consolidated"
ends "a new run from a folder that is gone" 2 20
# Two hosts with different folders of one name: each rank has a working folder of its own.
for host in 0 1; do mkdir "$work/host$host" && cp -r "$work/hf_away" "$work/host$host/hf"; done
size=$(stat -c %s "$work/host1/hf/model.safetensors")
printf '\x01' | dd of="$work/host1/hf/model.safetensors" bs=1 seek=$((size - 3)) conv=notrunc status=none
# shellcheck disable=SC2016  # the ranks' shell expands it
"$launch" --nproc_per_node=2 bash -c 'cd "$0/host$RANK" && exec "$@"' "$work" "$mtrain" --recipe "$work/r.yaml" \
  "${tensor[@]}" model.from=hf "train.run_dir=$work/hf_hosts" >"$work/out" 2>&1
[[ $? == 2 ]] || fail "hosts with different folders are not refused"
says "hosts with different folders" "rank 1 has a different folder hf from rank 0"
# After a kill during that save there is neither the checkpoint nor its Hugging Face folder.
start hf_killed 3 train.steps=100000 train.global_batch_size=6 checkpoint.every_steps=1 checkpoint.save_consolidated=every \
  "debug.fault={at: save_consolidated, rank: 0, step: 3}"
ends "a kill while a form is written" 1 15
grep -qE "rank 0 \(pid [0-9]+\) was killed by signal 9" "$work/out" || fail "a kill while a form is written is not named"
none_left hf_killed
cut=$work/hf_killed/checkpoints/step-00000003
[[ ! -e $cut ]] && compgen -G "$cut.tmp-*/consolidated.tmp-*" >/dev/null ||
  fail "a kill while a form is written left $(ls "$work/hf_killed/checkpoints")"
[[ -e $work/hf_killed/checkpoints/step-00000002/consolidated/config.json ]] || fail "the form before the kill is gone"
start hf_killed 3 train.steps=4 train.global_batch_size=6 checkpoint.every_steps=1 checkpoint.save_consolidated=every \
  checkpoint.load=latest
ends "a run that goes on after the kill" 0 60
"$mtrain" export hf "$cut" --output "$work/hf_export_cut" >/dev/null || fail "an export of $cut"
diff -r "$cut/consolidated" "$work/hf_export_cut" >/dev/null || fail "$cut/consolidated was not completed"
compgen -G "$cut.tmp-*" >/dev/null && fail "what the kill left stays"
start hf_fault 2 checkpoint.every_steps=1 "debug.fault={at: save_consolidated, rank: 1, step: 2}"
ends "a form that nobody writes" 2 20
says "a form that nobody writes" "step 2 has no such moment on rank 1"

# --- a mistake is reported once, before ranks start ---
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" optimizer.lrr=1 >"$work/out" 2>&1
(($? == 2)) || fail "a wrong recipe has another exit code than 2"
says "wrong recipe" "did you mean"
(($(grep -c "optimizer.lrr: there is no such key" "$work/out") == 1)) || fail "the mistake is reported more than once"
# --- launch.env acts without mtrain-launch, too: the variable is read before main() ---
"$mtrain" --recipe "$work/r.yaml" train.steps=1 "train.run_dir=$work/env" 'launch.env={MTRAIN_CPU_ISA: no_such_set}' >"$work/out" 2>&1
(($? == 2)) || fail "a variable of launch.env does not reach the run"
says "launch.env" "MTRAIN_CPU_ISA=no_such_set"
"$launch" --nproc_per_node=many --recipe "$work/r.yaml" >"$work/out" 2>&1
(($? == 2)) || fail "a wrong option has another exit code than 2"
says "wrong option" "--nproc_per_node=many"

"$launch" --nproc_per_node=2 --max_restarts=3 --recipe "$work/r.yaml" --bogus >"$work/out" 2>&1
(($? == 2)) || fail "wrong usage of a rank has another exit code than 2"
grep -q "restarting all ranks" "$work/out" && fail "wrong usage was restarted"
"$launch" --nproc_per_node=1 ./no-such-program x >"$work/out" 2>&1
says "no program" "cannot run ./no-such-program"

# --- a killed rank ---
start killed 3 train.steps=100000 train.global_batch_size=6
await_steps killed 3
kill -KILL "$(rank_pid killed 1)"
ends "a killed rank" 1 10
says "a killed rank" "was killed by signal 9"
none_left killed

start killed_gloo 3 train.steps=100000 train.global_batch_size=6 comm.backend=gloo
await_steps killed_gloo 3
kill -KILL "$(rank_pid killed_gloo 1)"
ends "a killed rank over gloo" 1 10
says "a killed rank over gloo" "rank 1"
says "a killed rank over gloo" "was killed by signal 9"
none_left killed_gloo

# --- a rank that hangs: the others wait for the timeout, then name it ---
start stopped 3 train.steps=100000 train.global_batch_size=6 comm.timeout_s=2
await_steps stopped 3
stopped=$(rank_pid stopped 2)
kill -STOP "$stopped"
ends "a stopped rank" 1 15
says "a stopped rank" "of the group did not arrive"
says "a stopped rank" "of group "  # dp_cp, or world, in which ranks agree to continue
none_left stopped

# --- a rank that dies or hangs during forward, a collective, the optimizer, or a save ---
for backend in auto gloo; do
  for at in "1 matmul_fc1_fwd" "1 all_reduce" "2 adamw" "0 save" "1 save"; do
    read -r rank moment <<<"$at"
    for kill in true false; do
      what="kill: $kill in $moment over $backend"
      start fault 3 train.steps=100000 train.global_batch_size=6 checkpoint.every_steps=1 "comm.backend=$backend" \
        comm.timeout_s=2 "debug.fault={at: $moment, rank: $rank, step: 3, kill: $kill}"
      ends "$what" 1 15
      # On a busy machine a rank that works may be late, too. The launcher then still names the one that is stopped.
      hangs="rank $rank on .* is stopped|rank $rank .*(did not arrive|does not answer)"
      if $kill; then names="rank $rank \(pid [0-9]+\) was killed by signal 9"; else names=$hangs; fi
      grep -qE "$names" "$work/out" || fail "$what: nothing says: $names"
      none_left fault
      # Step 3 may begin while step 2 is being written; its own save waits for that.
      if [[ $moment == save ]]; then saved=2; else saved=1; fi
      [[ -e $work/fault/checkpoints/step-0000000$saved/index.json ]] || fail "$what: step $saved is not saved"
      rm -rf "$work/fault"
    done
  done
done
start fault 2 "debug.fault={at: no_such_launch, rank: 1, step: 2}"
ends "a fault that cannot be" 2 20
says "a fault that cannot be" "step 2 has no such moment on rank 1"

# --- a rank with different settings, or a different program ---
port=$(free_port)
for rank in 0 1; do
  RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" \
    "train.run_dir=$work/other" optimizer.lr=1e-"$((rank + 3))" optimizer.eps=1e-"$((rank + 7))" comm.timeout_s=5 \
    >"$work/out$rank" 2>&1 &
done
wait
cat "$work/out0" "$work/out1" >"$work/out"
says "other settings" "rank 1 has a different recipe from rank 0"
grep -qE 'lr: .* instead of .*lr: .*, .*eps: .* instead of .*eps: ' "$work/out" || fail "other settings: both are not named"

# --- hosts with different numbers of ranks: all ranks end at once, and say so ---
port=$(free_port)
began=$SECONDS
for rank in 0 2; do
  RANK=$rank WORLD_SIZE=$((rank + 2)) MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" \
    "train.run_dir=$work/other_size" train.global_batch_size=8 comm.timeout_s=30 >"$work/out$rank" 2>&1 &
done
wait
cat "$work/out0" "$work/out2" >"$work/out"
((SECONDS - began < 20)) || fail "different numbers of ranks: the end takes $((SECONDS - began)) s"
says "different numbers of ranks" "rank 2 is one of 4 ranks, and rank 0 one of 2"
says "different numbers of ranks" "the same --nnodes and --nproc_per_node"
grep -q "rank 2 is one of 4" "$work/out0" || fail "different numbers of ranks: rank 0 does not say why it ends"

# --- the launcher's arguments: other ways to give the recipe, and mistakes that are reported before ranks start ---
refuses() {  # refuses <what> <text> <arguments>...
  local what=$1 text=$2
  shift 2
  timeout 60 "$launch" "$@" >"$work/out" 2>&1
  (($? == 2)) || fail "$what: not refused"
  grep -qF -- "mtrain-launch: error: " "$work/out" || fail "$what: another form of error"
  says "$what" "$text"
}
refuses "a misspelt option" "did you mean --nproc-per-node" --nproc-per-nod 2 "$work/r.yaml"
for address in localhost 127.0.0.1 ::1; do
  refuses "$address for two hosts" "$address means each of the 2 hosts itself" --nnodes=2 --node_rank=0 \
    --master_addr="$address" --master_port=29500 "$work/r.yaml"
done
refuses "hosts without numbers" "--node_rank is needed with --nnodes=2" --nnodes 2 --master_addr 192.0.2.1 "$work/r.yaml"
refuses "a port in an address" "write --master_addr 127.0.0.1 --master_port 29511" --master_addr 127.0.0.1:29511 "$work/r.yaml"
refuses "a port that is too large" "from 0 to 65535" --master_port 99999 "$work/r.yaml"
refuses "an option after the recipe" "before the recipe: mtrain-launch --nproc_per_node=2 $work/r.yaml" "$work/r.yaml" --nproc_per_node=2
refuses "a binding after the recipe" "before the recipe: mtrain-launch --numa_binding=node $work/r.yaml" "$work/r.yaml" --numa-binding=node
refuses "an option of other launchers" "did you mean --nproc_per_node?" --nproc 2 "$work/r.yaml"
refuses "a short option of other launchers" "write mtrain-launch --nproc_per_node=2 $work/r.yaml" -n 2 "$work/r.yaml"
refuses "another name for the recipe" "write mtrain $work/r.yaml" --config_file "$work/r.yaml"
refuses "no recipe" "write mtrain-launch --nproc_per_node 8 quickstart --dry-run" --nproc_per_node 8 --dry-run
(($(grep -c error "$work/out") == 1)) || fail "no recipe: reported more than once"
refuses "a misspelt option of mtrain" "did you mean --dry-run?" --nproc_per_node 8 "$work/r.yaml" --dry-rn
(($(grep -c error "$work/out") == 1)) || fail "a misspelt option: reported more than once"
# The launcher reads these words as mtrain does, before a rank starts.
refuses "a size to plan for" "mtrain-launch: error: --world-size sets the ranks to plan for" --nproc_per_node 2 "$work/r.yaml" --world-size 8
refuses "an option without its value" "mtrain-launch: error: --trace" --nproc_per_node 2 "$work/r.yaml" --trace
refuses "a script" "write mtrain-launch --nproc_per_node 2 python3 $work/train.py" --nproc_per_node 2 "$work/train.py"
refuses "a script before the recipe" "write mtrain-launch $work/r.yaml" "$work/train.py" "$work/r.yaml"
mkdir -p "$work/bin" && printf '#!/bin/sh\necho tool\n' >"$work/bin/tool.py" && chmod +x "$work/bin/tool.py"
PATH="$work/bin:$PATH" timeout 60 "$launch" --nproc_per_node=1 tool.py >"$work/out" 2>&1 || fail "a script on PATH"
says "a script on PATH" tool
refuses "an option after the recipe, beside others" "mtrain-launch --nproc_per_node=8 --nnodes=2 --node_rank=0 $work/r.yaml" \
  --nproc_per_node=8 "$work/r.yaml" --nnodes 2 --node_rank 0
refuses "a port in the local address" "--local_addr=127.0.0.1:1 is not a host" --nnodes=2 --node_rank=0 --local_addr=127.0.0.1:1 \
  "$work/r.yaml"
refuses "a command of AutoModel" "write mtrain-launch --nproc_per_node=2 $work/r.yaml optimizer.lr=1" --nproc_per_node=2 \
  automodel finetune llm -c "$work/r.yaml" optimizer.lr=1
refuses "a Python module" "python3 -m torchtitan.train after the options" --nproc_per_node=2 -m torchtitan.train
etcd=(--nnodes=1:2 --node_rank=0 --rdzv_endpoint=etcd0)
refuses "version 2 of etcd" "hint: use etcd," "${etcd[@]}" --rdzv_backend=etcd-v2 --rdzv_id=x "$work/r.yaml"
refuses "etcd without a name of the job" "--rdzv_id=NAME" "${etcd[@]}" --rdzv_backend=etcd "$work/r.yaml"
refuses "a password on the command line" "password_file=FILE" "${etcd[@]}" --rdzv_backend=etcd --rdzv_id=x --rdzv_conf=user=me,password=y "$work/r.yaml"
refuses "etcd for another program" "is for trainings of mtrain" "${etcd[@]}" --rdzv_backend=etcd --rdzv_id=x true
refuses "a protocol that etcd does not have" "use http or https" "${etcd[@]}" --rdzv_backend=etcd --rdzv_id=x --rdzv_conf=protocol=ftp "$work/r.yaml"
timeout 60 "$launch" "${etcd[@]}" --rdzv_backend=etcd --rdzv_id=x "$work/r.yaml" --dry-run >"$work/out" 2>&1 || fail "a dry run needs etcd"
timeout 60 "$launch" -m mtrain "$work/r.yaml" --dry-run >"$work/out" 2>&1 || fail "-m mtrain"
says "-m mtrain" "dry run on 1 rank"
refuses "a port that is none" "master_port: expected" --master_port=many "$work/r.yaml"
refuses "blanks in a setting" "no spaces around" --nproc_per_node=1 "$work/r.yaml" optimizer.lr = 1
for words in "$work/r.yaml" "-c $work/r.yaml" "train $work/r.yaml"; do
  # shellcheck disable=SC2086  # several words
  "$launch" --nproc_per_node=1 $words train.steps=1 "train.run_dir=$work/by_word" >"$work/out" 2>&1 || fail "recipe by: $words"
  rm -rf "$work/by_word"
done

# --- ranks that see different files: each in a folder of its own, with different data at the same relative path ---
mkdir "$work/host0" "$work/host1"
seq 1 50000 >"$work/longer"
"$mtrain" data build --input "$work/text" --output "$work/host0/data" >/dev/null || fail "data build"
"$mtrain" data build --input "$work/longer" --output "$work/host1/data" >/dev/null || fail "data build"
# on_hosts <what> <what rank 0 says> <what rank 1 says> [setting...]
on_hosts() {
  local began=$SECONDS port rank
  port=$(free_port)
  for rank in 0 1; do
    (cd "$work/host$rank" && MTRAIN_TOKEN=$token RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" \
      --recipe "$work/r.yaml" dataset.train=data train.run_dir=run comm.timeout_s=60 "${@:4}" >"$work/out$rank" 2>&1) &
  done
  wait
  ((SECONDS - began <= 15)) || fail "$1: took $((SECONDS - began)) s"
  cp "$work/out0" "$work/out"
  says "$1, rank 0" "$2"
  cp "$work/out1" "$work/out"
  says "$1, rank 1" "$3"
}
on_hosts "other data" "rank 1 has a different dataset.train from rank 0" "rank 1 has a different dataset.train from rank 0"
[[ ! -e $work/host0/run/metrics.jsonl ]] || fail "other data: training began"
cp "$(dirname "${BASH_SOURCE[0]}")/../golden/tokenizer/contiguous.json" "$work/host0/tokenizer.json"
on_hosts "no tokenizer" "rank 1" "no tokenizer at tokenizer.json" "tokenizer={type: huggingface, path: tokenizer.json}"
rm "$work/host1/data.bin"
on_hosts "data of one rank alone" "rank 1" "dataset.train: there is no data.bin"

# --- a host never starts: the others name it, and the setting that limits the wait ---
for hosts in 2 3; do
  port=$(free_port)
  timeout 60 "$launch" --nnodes=$hosts --node_rank=0 --nproc_per_node=2 --master_addr=127.0.0.1 --local_addr=127.0.0.1 \
    --master_port="$port" --recipe "$work/r.yaml" "train.run_dir=$work/alone$hosts" train.global_batch_size=$((hosts * 4)) \
    comm.timeout_s=2 >"$work/out" 2>&1
  (($? == 1)) || fail "a host that never starts: another exit code than 1"
  says "a host that never starts" "host $( ((hosts == 2)) && echo "1 of 2 (rank 2, 3)" || echo "1, 2 of 3 (rank 2, 3, 4, 5)") did not arrive within 2 s"
  says "a host that never starts" "comm.timeout_s sets how long ranks wait"
done

# --- nobody serves at that address; the port is taken ---
port=$(free_port)
MTRAIN_TOKEN=$token RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" \
  comm.timeout_s=1 >"$work/out" 2>&1
(($? == 1)) || fail "no server: another exit code than 1"
says "no server" "no rendezvous at 127.0.0.1:$port"
python3 -c "
import socket, time
six = socket.has_dualstack_ipv6()
s = socket.create_server(('', $port), family=socket.AF_INET6 if six else socket.AF_INET, dualstack_ipv6=six)
open('$work/holding', 'w'); time.sleep(60)" &
holder=$!
for ((i = 0; i < 100; i++)); do
  [[ -e $work/holding ]] && break
  sleep 0.1
done
[[ -e $work/holding ]] || fail "a taken port: nothing could take it"
"$launch" --nproc_per_node=2 --master_port="$port" --recipe "$work/r.yaml" "train.run_dir=$work/taken2" \
  comm.timeout_s=3 >"$work/out" 2>&1
(($? == 2)) || fail "a taken port: another exit code than 2"
says "a taken port" "cannot serve the rendezvous at port $port"
kill "$holder" 2>/dev/null
wait 2>/dev/null

# --- a second job at the port of a running one ---
port=$(free_port)
MTRAIN_TOKEN=$token "$launch" --nproc_per_node=2 --master_port="$port" --recipe "$work/r.yaml" "train.run_dir=$work/first" \
  train.steps=100000 >"$work/out1" 2>&1 &
first=$!
await_steps first 2
MTRAIN_TOKEN=$token RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" \
  "train.run_dir=$work/first" train.steps=100000 >"$work/out" 2>&1
says "a stray rank" "rank 1 has already joined"
MTRAIN_TOKEN=${token/7/8} RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$mtrain" --recipe "$work/r.yaml" \
  "train.run_dir=$work/first" train.steps=100000 >"$work/out" 2>&1
says "a rank of another job" "does not know this job's token"
before=$(losses "$work/first" | wc -l)
await_steps first $((before + 3))
kill -INT "$first"
wait "$first"

# --- the launcher's store outlives rank 0; a rank of an older start, or of another job, has to end ---
port=$(free_port)
MTRAIN_TOKEN=$token "$launch" --nproc_per_node=2 --master_port="$port" --max_restarts=1 --rdzv_id=own --recipe "$work/r.yaml" \
  "train.run_dir=$work/rounds" train.steps=100000 checkpoint.every_steps=2 >"$work/out1" 2>&1 &
first=$!
await_steps rounds 3
kill -KILL "$(rank_pid rounds 0)"
for ((i = 0; i < 200; i++)); do
  grep -q "restart 1: continuing" "$work/out1" && break
  sleep 0.05
done
grep -q "restarting all ranks (1 of 1) now" "$work/out1" || fail "the first restart waits"
# stray_rank <what> <text> [NAME=VALUE...]: starts rank 1 by hand
stray_rank() {
  env "MTRAIN_TOKEN=$token" RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost "MASTER_PORT=$port" "${@:3}" timeout 30 "$mtrain" \
    --recipe "$work/r.yaml" "train.run_dir=$work/rounds" train.steps=100000 checkpoint.every_steps=2 >"$work/out" 2>&1 &&
    fail "$1 is not refused"
  says "$1" "$2"
}
stray_rank "a rank of an older start" "start 0 of this job has ended: all ranks have been restarted as start 1" MTRAIN_JOB_NAME=own
stray_rank "a rank of another job's name" 'runs the job `own`, not `other`' MTRAIN_JOB_NAME=other MTRAIN_RESTART_COUNT=1
stray_rank "a rank that is there already" "rank 1 has already joined" MTRAIN_JOB_NAME=own MTRAIN_RESTART_COUNT=1
before=$(losses "$work/rounds" | wc -l)
await_steps rounds $((before + 3))
kill -INT "$first"
wait "$first" || fail "a job with strays of an older start ends badly"
none_left rounds

# --- Ctrl-C finishes the step, saves and ends well ---
start interrupted 2 train.steps=100000
await_steps interrupted 3
kill -INT "$pid"
ends "Ctrl-C" 0 20
says "Ctrl-C" "saving and ending"
ls "$work"/interrupted/checkpoints/step-* >/dev/null 2>&1 || fail "Ctrl-C has saved nothing"
none_left interrupted

# --- restarts continue from the newest checkpoint, and so does the loss curve ---
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/straight" train.steps=60 \
  checkpoint.every_steps=5 >"$work/out" 2>&1 || fail "the straight run"
"$launch" --nproc_per_node=2 --max_restarts=2 --recipe "$work/r.yaml" "train.run_dir=$work/again" train.steps=60 \
  checkpoint.every_steps=5 >"$work/out" 2>&1 &
pid=$!
await_steps again 12
kill -KILL "$(rank_pid again 1)"
ends "restart" 0 60
says "restart" "restarting all ranks (1 of 2)"
[[ $(losses "$work/again") == "$(losses "$work/straight")" ]] || fail "the restarted run's losses are others"

# --- a signal during the wait before a restart ends the job, and run.json says so ---
"$launch" --nproc_per_node=2 --max_restarts=5 --recipe "$work/r.yaml" "train.run_dir=$work/waits" train.steps=100000 \
  >"$work/out" 2>&1 &
pid=$!
await_steps waits 2
kill -KILL "$(rank_pid waits 1)"
for ((i = 0; i < 200; i++)); do
  grep -q '"state": "running"' "$work/waits/run.json" && grep -q '"attempts": 2' "$work/waits/run.json" && break
  sleep 0.05
done
kill -KILL "$(rank_pid waits 1)"
for ((i = 0; i < 200; i++)); do
  grep -q "(2 of 5) in 1 s" "$work/out" && break
  sleep 0.02
done
kill -INT "$pid"
ends "a signal before a restart" 1 20
says "a signal before a restart" "the ranks are not restarted"
grep -q '"state": "failed"' "$work/waits/run.json" || fail "after a restart that is not made: $(cat "$work/waits/run.json")"

# --- before a run's first save, a restart begins with checkpoint.load: here the newest checkpoint of another run
# ---
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/branch" "checkpoint.load=$work/ranks2" \
  train.steps=12 >"$work/out" 2>&1 || fail "a branch of another run"
# restarts_branch <name> <setting>...
restarts_branch() {
  local name=$1
  shift
  "$launch" --nproc_per_node=2 --max_restarts=1 --recipe "$work/r.yaml" "train.run_dir=$work/$name" \
    "checkpoint.load=$work/ranks2" train.steps=12 "$@" >"$work/out" 2>&1 || fail "$name: the restarted run"
  says "$name" "restarting all ranks (1 of 1)"
  [[ $(losses "$work/$name") == "$(losses "$work/branch")" ]] || fail "$name: the restarted run's losses are others"
}
restarts_branch branch_unsaved checkpoint.every_steps=5 "debug.fault={at: adamw, rank: 1, step: 9}"
says "branch_unsaved" "restart 1: continuing after step 6 of $work/ranks2/checkpoints/step-00000006"
restarts_branch branch_saved checkpoint.every_steps=5 checkpoint.async=false "debug.fault={at: adamw, rank: 1, step: 12}"
says "branch_saved" "restart 1: continuing after step 10 of $work/branch_saved/checkpoints/step-00000010"

# --- the same on two hosts, each with a launcher of its own ---
port=$(free_port)
for host in 0 1; do
  "$launch" --nnodes=2 --node_rank="$host" --nproc_per_node=1 --master_addr=127.0.0.1 --local_addr=127.0.0.1 --master_port="$port" \
    --max_restarts=1 --recipe "$work/r.yaml" "train.run_dir=$work/hosts" "checkpoint.load=$work/ranks2" train.steps=12 \
    "debug.fault={at: adamw, rank: 1, step: 9}" >"$work/out$host" 2>&1 &
done
wait
cat "$work/out0" "$work/out1" >"$work/out"
says "two hosts" "restart 1: continuing after step 6 of $work/ranks2/checkpoints/step-00000006"
[[ $(losses "$work/hosts") == "$(losses "$work/branch")" ]] || fail "two hosts: the restarted run's losses are others"

# --- without checkpoint.load a restart begins at step 1 ---
"$launch" --nproc_per_node=2 --max_restarts=1 --recipe "$work/r.yaml" "train.run_dir=$work/anew" \
  "debug.fault={at: adamw, rank: 1, step: 3}" >"$work/out" 2>&1 || fail "a run that begins anew"
says "anew" "restart 1: nothing is saved yet, starting at step 1"
says "anew" "metrics.jsonl is kept as metrics.jsonl.abandoned"
[[ $(losses "$work/anew") == "$(losses "$work/ranks2")" ]] || fail "a run that begins anew has other losses"

# --- a variable that the user has set is named once, by the launcher ---
MINE=1 "$launch" --nproc_per_node=2 --recipe "$work/r.yaml" train.steps=1 "train.run_dir=$work/variable" 'launch.env={MINE: 2}' \
  >"$work/out" 2>&1 || fail "a run with a variable"
[[ $(grep -c "the environment's value of MINE overrides" "$work/out") == 1 ]] || fail "the user's variable is not named once"

# --- a length in epochs: all ranks make the same steps; and the best checkpoint ---
"$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/epochs" train.epochs=0.0067 checkpoint.keep=1 \
  checkpoint.keep_best=1 "dataset.validation=$work/set" validation.every_steps=2 validation.steps=1 >"$work/out" 2>&1 ||
  fail "a run of epochs"
says "epochs" "train.steps: 6: train.epochs=0.0067 of"
says "epochs" "(best so far, kept as best)"
[[ $(losses "$work/epochs") == "$(losses "$work/ranks2")" ]] || fail "epochs: the losses are others"
[[ -e $work/epochs/checkpoints/best/state.json ]] || fail "epochs: there is no best checkpoint"

# --- output of the ranks in files ---
"$launch" --nproc_per_node=2 --log_dir "$work/logs" -r 3 --recipe "$work/r.yaml" "train.run_dir=$work/logged" \
  >"$work/out" 2>&1 || fail "a logged run"
grep -q "^step" "$work/logs/attempt_0/rank_0/stdout.log" || fail "rank 0 has no log"
grep -q "step " "$work/out" && fail "what goes into files alone is printed"
# The folder alone is enough, and so is the name of a ready recipe.
(cd "$work" && "$launch" --nproc_per_node=2 --log_dir "$work/alone" quickstart train.steps=3 "dataset.train=$work/set" \
  '~dataset.validation' '~validation.every_steps' '~validation.steps' model.num_layers=1 "train.run_dir=$work/named") >"$work/out" 2>&1 ||
  fail "a run of a ready recipe with its logs"
says "logs by --log_dir alone" "[rank 0] step 3/3"
for rank in 0 1; do
  [[ -e $work/alone/attempt_0/rank_$rank/stderr.log ]] || fail "rank $rank has no log of --log_dir alone"
done
grep -q "^step 3/3" "$work/alone/attempt_0/rank_0/stdout.log" || fail "--log_dir alone writes no steps"
"$launch" --nproc_per_node=2 --log_dir "$work/none" --redirects 0 llama3_8b --dry-run >"$work/out" 2>&1 || fail "a dry run by name"
says "a dry run of a ready recipe" "dry run on 2 ranks"
[[ -e $work/none ]] && fail "--redirects 0 writes files"
((failures == 0)) && echo "all well"
exit $((failures > 0))
