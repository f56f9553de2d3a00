#!/usr/bin/env bash
# Tests the job script for Slurm with stand-ins for srun and scontrol: a job that gets the signal before its time limit
# saves, is queued again, and continues with an equal curve.
#   test/process/slurm_script_test.sh <mtrain> <mtrain-launch>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2")
script=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/slurm/mtrain.sbatch
work=$(mktemp -d)
step=
trap '[[ $step ]] && kill -KILL "$step" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() {
  echo "FAILED: $1"
  tail -n 20 out mtrain.*.log 2>/dev/null | sed 's/^/    /'
  failures=$((failures + 1))
}

mkdir bin
cat >bin/srun <<'END'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do
  [[ $1 == --output=* ]] && out=${1#--output=}
  shift
done
SLURM_NODEID=0 "$@" >>"${out//%n/0}" 2>&1 &
echo $! >step.pid
wait $!
END
cat >bin/scontrol <<'END'
#!/usr/bin/env bash
[[ $1 == show ]] && echo localhost && exit
echo "$*" >>requeued
END
chmod +x bin/*
seq 1 20000 >text
"$mtrain" data build --input text --output set >/dev/null || exit 1
cat >r.yaml <<'END'
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: set, seq_length: 32}
train: {steps: 120, global_batch_size: 2, micro_batch_size: 1, threads: 1, run_dir: run, log_every: 1}
distributed: {strategy: ddp}
mixed_precision: fp32
comm: {link: {latency_us: 4000}}
END
job() { # job <restart count> [setting...]
  local count=$1
  shift
  env PATH="$work/bin:$PATH" SLURM_JOB_ID=$$ SLURM_JOB_NODELIST='n[1]' SLURM_NNODES=1 SLURM_NTASKS=1 MTRAIN_RANKS=2 \
    MTRAIN_LAUNCH="$launch" SLURM_RESTART_COUNT="$count" bash "$script" r.yaml "$@" >out 2>&1
}
losses() { sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl" 2>/dev/null; }

job 0 train.run_dir=straight || fail "a job without a signal"
[[ ! -e requeued ]] || fail "a finished job is queued again"
rm -f mtrain.*.log step.pid
job 0 &
running=$!
for ((i = 0; i < 600; i++)); do
  (($(losses run | wc -l) >= 20)) && break
  sleep 0.05
done
step=$(cat step.pid)
kill -USR1 "$step"
wait "$running" || fail "the job that got a signal"
step=
[[ $(cat requeued 2>/dev/null) == "requeue $$" ]] || fail "the interrupted job is not queued again"
(($(losses run | wc -l) < 120)) || fail "the job has made all steps in spite of the signal"
job 1 || fail "the second start"
[[ $(wc -l <requeued) == 1 ]] || fail "the finished job is queued again"
[[ $(losses run) == "$(losses straight)" ]] || fail "the curve of the continued job is another"
[[ -e mtrain.$$.0.0.log && -e mtrain.$$.0.1.log ]] || fail "a start has no log of its own"
((failures == 0)) && echo "the job script saves, requeues and continues"
exit $((failures > 0))
