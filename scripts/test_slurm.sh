#!/usr/bin/env bash
# Tests mtrain under a real Slurm: a job that gets USR1 saves, is queued again and continues with an equal curve, as
# ranks of srun train, and of mpirun inside a job where it is installed. Starts munge and Slurm's daemons for this host
# alone, from a temporary folder, and ends them.
#   scripts/test_slurm.sh      as root, with Debian's packages slurm-wlm and munge, and build/release built
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  -h | --help) usage && exit 0 ;;
  '') ;;
  *) die "unknown option $1" ;;
esac
((EUID == 0)) || die "Slurm's daemons need root"
for program in munged slurmctld slurmd sbatch srun; do
  command -v "$program" >/dev/null || die "$program is missing: apt-get install slurm-wlm munge"
done
mtrain=$(realpath "$(program_path mtrain)") launch=$(realpath "$(program_path mtrain-launch)")
job_script=$PWD/scripts/slurm/mtrain.sbatch
work=$(mktemp -d)
daemons=()
end_all() {
  if ((${#daemons[@]} > 0)); then
    kill "${daemons[@]}" 2>/dev/null || true
    sleep 0.5
    kill -KILL "${daemons[@]}" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap end_all EXIT
chmod 755 "$work"
cd "$work"

# --- munge and Slurm ---
dd if=/dev/urandom of=key bs=64 count=1 status=none
chmod 400 key
munged --foreground --force --key-file="$work/key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munge.log" --seed-file="$work/munge.seed" >munged.out 2>&1 &
daemons+=($!)
cpus=$(nproc)
cat >slurm.conf <<END
ClusterName=mtrain-test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket,cred_expire=5
SlurmctldPort=$((20000 + $$ % 5000))
SlurmdPort=$((25001 + $$ % 5000))
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$((cpus < 4 ? 4 : cpus)) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
mkdir state spool
export SLURM_CONF=$work/slurm.conf
slurmctld -D >slurmctld.out 2>&1 &
daemons+=($!)
slurmd -D >slurmd.out 2>&1 &
daemons+=($!)
await() { # await <what> <command>...
  local what=$1 i
  shift
  for ((i = 0; i < 600; i++)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  tail -n 15 ./*.out ./*.log >&2
  die "$what: not within two minutes"
}
idle() { sinfo -h -o %T | grep -qx idle; }
await "Slurm's node" idle
say "Slurm $(slurmctld -V | sed 's/.* //') runs"

# --- a training ---
seq 1 20000 >text
"$mtrain" data build --input text --output set >/dev/null
cat >r.yaml <<END
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: $work/set, seq_length: 32}
train: {steps: 150, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
mixed_precision: fp32
comm: {link: {latency_us: 4000}}
END
losses() { sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl" 2>/dev/null; }
at_step() { (($(losses "$1" | wc -l) >= $2)); }
field() { scontrol show job "$1" | grep -oE "\\b$2=[^ ]*" | head -n 1 | cut -d= -f2; }
in_state() { [[ $(field "$1" JobState) == "$2" ]]; }
"$launch" --nproc_per_node=2 --recipe r.yaml train.run_dir=straight >straight.log 2>&1 || die "the straight run failed"

job=$(MTRAIN_LAUNCH=$launch MTRAIN_RANKS=2 sbatch --parsable --cpus-per-task=2 "$job_script" r.yaml train.run_dir=job)
await "step 30 of the job" at_step job 30
scancel --signal=USR1 "$job"
await "the second start" in_state "$job" PENDING
say "job $job was interrupted at step $(losses job | wc -l) and is queued again"
await "the end of the job" in_state "$job" COMPLETED
[[ $(field "$job" Restarts) == 1 ]] || die "the job was started again $(field "$job" Restarts) times"
[[ $(losses job) == "$(losses straight)" ]] || die "the curve of the continued job is another"
[[ -e mtrain.$job.$(hostname -s).1.log || -e mtrain.$job.0.1.log ]] || die "the second start has no log: $(ls)"
say "it continued, and its curve is that of the straight run"

srun --ntasks=2 "$mtrain" --recipe r.yaml train.run_dir=srun >srun.log 2>&1 || {
  tail -n 20 srun.log
  die "srun with one task per rank failed"
}
[[ $(losses srun) == "$(losses straight)" ]] || die "the curve of srun's ranks is another"
say "srun's ranks have the same curve"

if command -v mpirun >/dev/null; then
  cat >mpi.sbatch <<END
#!/usr/bin/env bash
mpirun --allow-run-as-root --oversubscribe -n 2 "$mtrain" --recipe r.yaml train.run_dir=mpi
END
  sbatch --wait --ntasks=2 --output=mpi.log mpi.sbatch >/dev/null || {
    tail -n 20 mpi.log
    die "mpirun inside a job failed"
  }
  [[ $(losses mpi) == "$(losses straight)" ]] || die "the curve of mpirun's ranks is another"
  say "mpirun's ranks have the same curve"
else
  say "mpirun is not installed: not tested"
fi
say "all tests under Slurm passed"
