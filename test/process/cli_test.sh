#!/usr/bin/env bash
# Tests mtrain as a new user meets it: the messages for typical mistakes in a recipe, exit codes, and the commands that
# show something without training.
#   test/process/cli_test.sh <mtrain>
set -u
mtrain=$1
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=("$mtrain")
source "$repository/test/process/expect.sh"

# mistake <what> <text>... -- <recipe>: requires that the recipe is refused with exit code 2, its path, and all texts.
mistake() {
  local what=$1
  local -a texts=()
  shift
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  printf '%b' "$2" >"$work/r.yaml"
  expect "$what" 2 "$work/r.yaml" hint "${texts[@]}" -- --recipe "$work/r.yaml" --dry-run --world-size "${world:-1}"
}

base='model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, vocab_size: 512}\ndataset: {train: x, seq_length: 1024}\ntrain: {global_batch_size: 32}\n'

mistake "wrong indent" ":3:" -- 'model:\n  num_layers: 8\n hidden_size: 256\n'
mistake "a tab" ":2:" "tab" "spaces" -- 'model:\n\tnum_layers: 8\n'
mistake "a misspelt key" "model.num_layer" "did you mean \`model.num_layers\`" -- 'model: {num_layer: 8}\n'
mistake "a string for a number" "optimizer.lr" "fast" -- "${base}optimizer: {lr: fast}\n"
world=3 mistake "tp that does not divide the heads" "tp_size 3 does not divide the 8 attention heads" "use tp_size 2, 4 or 8, and a number of ranks that is a multiple of it" -- \
  "${base}distributed: {tp_size: 3}\n"
world=4 mistake "ep that does not divide dp x cp" "ep_size 8 does not divide dp(4) * cp(1) = 4" -- \
  "${base}distributed: {ep_size: 8}\nmodel.moe.num_experts: 8\n"
world=8 mistake "hierarchical sizes whose product is not cp" "4" "cp_size" -- \
  "${base}distributed: {cp_size: 8, cp_comm_type: a2a+p2p, hierarchical_context_parallel_sizes: [2, 2]}\n"
world=4 mistake "a packed size that cp does not divide" "packed_sequence_size" "1001" -- \
  "${base}distributed: {cp_size: 4}\npacked_sequence: {packed_sequence_size: 1001}\n"
world=4 mistake "pp without a pipeline section" "pp_size 4 needs the section distributed.pipeline" "pipeline: {pp_schedule: 1f1b}" -- \
  "${base}distributed: {pp_size: 4}\n"
world=4 mistake "dp_replicate_size under ddp" "dp_replicate_size" "fsdp2" -- \
  "${base}distributed: {strategy: ddp, dp_replicate_size: 2}\n"
mistake "a model without a Hugging Face form" "checkpoint.save_consolidated" "no family of Hugging Face's" \
  "model.normalization: layernorm, not rmsnorm" -- \
  "${base}model.normalization: layernorm\ncheckpoint: {save_consolidated: final}\n"
# All mistakes of a recipe are reported at once, in the order of its lines.
world=3 mistake "several mistakes" "misspelt" "tp_size 3" "bogus" -- \
  'model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, misspelt: 1}\ndistributed: {tp_size: 3}\noptimizer: {lr: bogus}\n'

printf '%b' "$base" >"$work/good.yaml"
expect "no recipe" 2 "no recipe given" hint --
expect "Megatron's flags alone" 2 "no recipe given" "Megatron's model" hint -- --num-layers 2 --hidden-size 64 --bf16
expect "a function that asks for more" 2 "fp8cs" "mixed_precision=bf16_with_fp8_current" -- \
  --recipe llama3_8b_pretrain_8gpu_h100_fp8cs_config --dry-run
expect "no such recipe" 2 "there is no such file" "did you mean $work/good.yaml" -- --recipe "$work/god.yaml"
cd "$work" || exit 1
expect "a ready recipe by its name" 0 "is the ready recipe" "dry run on 64 ranks" -- --recipe llama3_8b --dry-run --world-size 64
expect "Megatron-Bridge's function" 0 "llama3_2_1b.yaml" -- --recipe llama32_1b_pretrain_config --dry-run --world-size 8
expect "no ready recipe" 2 "did you mean llama3_8b" -- --recipe llama3_9b --dry-run
expect "Megatron's flags" 0 "tp 2" "tp_comm_overlap: true -> true" -- --recipe "$work/good.yaml" --dry-run --world-size 2 \
  --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap --train-iters 7
expect "an idle flag" 0 "is disabled" "tp_comm_overlap: true -> false" -- --recipe "$work/good.yaml" --dry-run --tp-comm-overlap
expect "an idle flag, strict" 2 "without --strict" -- --recipe "$work/good.yaml" --dry-run --tp-comm-overlap --strict
expect "a trial of a long recipe" 0 "20 is clipped to 2" -- --recipe quickstart --print-recipe train.steps=3
unsupported="model.tp_comm_overlap_cfg={qkv_fprop: {atomic_gemm: true}}"
expect "missing data beside other mistakes" 2 "there is no file x.bin" "not supported yet: atomic_gemm" -- \
  --recipe "$work/good.yaml" "$unsupported"
cd - >/dev/null || exit 1
expect "unknown option" 2 "--recipes" -- --recipes x
expect "a misspelt command" 2 "mtrain: error: " "did you mean \`mtrain schedule\`?" -- shedule --pp 4
expect "a misspelt command below another" 2 "did you mean \`mtrain data build\`?" -- data biuld
expect "a misspelt option" 2 "mtrain has no such option" "did you mean --dry-run?" -- "$work/good.yaml" --dry-rn
expect "a misspelt option of a command" 2 "did you mean --model?" -- eval --modl x --data y
expect "words too many" 2 "\`b\`: mtrain timeline takes no further word" -- timeline a b c
expect "a value that is none" 2 "--world-size: expected a whole number from 0 to 16777216, got \`x\`" "hint: write --world-size 8" -- \
  "$work/good.yaml" --dry-run --world-size x
expect "a word that is none of a list" 2 "expected one of auto, text, jsonl, got \`txt\`; did you mean text?" "write --format" -- \
  data build --input x --output y --format txt
expect "an option without its value" 2 "--world-size needs a value" -- "$work/good.yaml" --world-size
expect "an option twice" 2 "--svg is given 2 times: a, b" "give it once" -- schedule --svg a --svg b
expect "a flag with a value" 2 "--csv is a flag" -- schedule --csv=maybe
expect "a missing option" 2 "needs --model" "for example mtrain eval --model runs/first" -- eval
expect "a positional word as an option" 2 "write mtrain export hf RUN --output FOLDER" -- export --model run1 --output hf
expect "a missing command" 2 "write mtrain export hf runs/first --output hf/first" -- export
expect "underscores in an option" 0 "dry run on 2 ranks" -- "$work/good.yaml" --dry_run --world_size 2
expect "underscores in an option of a command" 2 "hint: write --validation-fraction 0.5" -- \
  data build --input x --output y --validation_fraction 2
expect "another tool's name for the number of tokens" 2 "generate has no such option" "did you mean --tokens?" -- \
  generate --model x --prompt a --max_new_tokens 5
expect "a command that continues a run" 2 "write mtrain RECIPE checkpoint.load=latest train.run_dir=runs/x" -- resume runs/x
expect "an option of preprocess_data.py" 2 "did you mean --threads?" -- data build --input x --output y --workers 4
expect "a recipe by other ways" 0 "dry run on 2 ranks" -- train "$work/good.yaml" --dry-run --world-size 2
expect "a recipe by -c" 0 "dry run on 2 ranks" -- -c "$work/good.yaml" --dry-run --world-size 2
expect "a recipe by --config" 0 "dry run on 2 ranks" -- --config "$work/good.yaml" --dry-run --world-size 2

# For every mistake in an option, the user sees mtrain's message and not that of the library that reads options.
cd "$work" || exit 1
for command in "" schedule timeline watch compare report "checkpoint list" "checkpoint diff" "checkpoint reshard" "checkpoint prune" eval generate "data build" "data show" "data bigram" "import hf" "export hf" schema explain "recipe explain"; do
  # shellcheck disable=SC2086  # the words of a command
  for option in $("$mtrain" $command --help | grep -oE -e '--[a-z][a-z_-]+' | sort -u); do
    for bad in "$option=@" "${option}x"; do
      "$mtrain" $command $bad >"$work/out" 2>&1 </dev/null && continue
      grep -qE '^mtrain: error: ' "$work/out" || fail "mtrain $command $bad: another form of error"
      grep -qE 'not in range|Could not convert|ENUM|were not|was not expected|is required|required but|excludes|Run with|->' "$work/out" &&
        fail "mtrain $command $bad: a text of the library"
    done
  done
done
cd - >/dev/null || exit 1
for page in "" schedule "data build"; do
  # shellcheck disable=SC2086
  "$mtrain" $page --help >"$work/out" 2>&1
  grep -qE 'ENUM|->[0-9]' "$work/out" && fail "mtrain $page --help: a text of the library"
done

expect "world size that does not fit" 2 "does not divide" -- --recipe "$work/good.yaml" --dry-run --world-size 7 distributed.tp_size=2
expect "world size of a run" 2 "but starts none" -- --recipe "$work/good.yaml" --world-size 2
expect "what is not supported is not run" 2 "not supported yet: atomic_gemm" -- \
  --recipe "$work/good.yaml" "$unsupported"
export COLUMNS=200  # so that a row is a line
experts=(--recipe "$work/good.yaml" --dry-run --world-size 8 model.moe=8 distributed.ep_size=8 model.moe.token_dispatcher=flex)
expect "dry run" 0 "dry run on 8 ranks" "activations" "effective" -- "${experts[@]}"
expect "dry run of what a run refuses" 2 "not supported yet: atomic_gemm" -- "${experts[@]}" "$unsupported"
expect "asynchronous checkpoints by the names of others" 0 "dry run on 8 ranks" -- "${experts[@]}" checkpoint.is_async=true --async-save
expect "dry run for a GPU" 0 "h200 for each rank" "in a node" "planned on the fullest rank: fits" "ms)" \
  " weight gradients; " "--estimate attention=" -- "${experts[@]}" hardware.gpu=h200
expect "dry run of more ranks than cores" 0 "h100 for each rank" -- --recipe "$work/good.yaml" --dry-run --world-size 4096 \
  train.global_batch_size=4096
expect "dry run for CPUs" 0 "CPU, 2 threads for each rank" -- "${experts[@]}" train.device=cpu train.threads=2 hardware.gpu=h200
expect "dry run without data" 0 "dry run on 1 rank" -- --recipe "$work/good.yaml" --dry-run dataset.train="$work/nowhere"
expect "dry run without a vocabulary" 2 "$work/nowhere" "set model.vocab_size" -- \
  --recipe "$work/good.yaml" --dry-run '~model.vocab_size' tokenizer.path="$work/nowhere"
expect "dry run of the fewest ranks" 0 "dry run on 4 ranks" "4: the fewest that the sizes (tp 2 x pp 2) and the batch of 32 allow" \
  "planned on the fullest rank: fits" -- --recipe "$work/good.yaml" --dry-run hardware.gpu=h100 \
  distributed.tp_size=2 distributed.pp_size=2 distributed.pipeline={}
large=(--recipe "$repository/recipes/llama3_70b.yaml" --dry-run)
expect "a plan that does not fit" 0 "each of the ranks 0 to 63 (pp rank 0) needs" "its device has 74.5 GiB" \
  "hint: add distributed.tp_size=4" "dense, 70B and more: tp 8 is usual, not tp 1; distributed.tp_size=8 plans" -- \
  "${large[@]}" --world-size 256 distributed.tp_size=1
expect "a plan that does not fit, strictly" 2 "the plan does not fit: each of the ranks 0 to 15" "hint: add distributed.strategy=fsdp2" -- \
  "${large[@]}" --world-size 64 hardware.memory_gb=60 --strict
expect "its hint" 0 "planned on the fullest rank: fits" -- "${large[@]}" --world-size 256 distributed.tp_size=1 distributed.tp_size=4
grep -qE 'does not fit|advice' "$work/out" && fail "its hint: the plan does not fit, or gets advice"
expect "a plan that fits in no layout" 0 "no layout of 8 ranks fits" "the least is" -- "${large[@]}" --world-size 8 distributed.tp_size=1
expect "more ranks for a plan that does not fit" 0 "hint: add --world-size 64" -- "${large[@]}"
expect "the cost of recomputation" 0 "full, groups of 1, +3" "% FLOPs" -- "${large[@]}" --world-size 256 recompute=full
RANK=0 WORLD_SIZE=1 expect "dry run of a launcher's ranks" 2 "does not divide the world of 1 ranks" -- \
  --recipe "$work/good.yaml" --dry-run distributed.tp_size=2
unset COLUMNS
expect "NCCL without a GPU" 2 "no GPU" "comm.backend=auto" -- --recipe "$work/good.yaml" dist_env.backend=nccl
expect "print recipe" 0 "# override" "num_layers: 9" -- --recipe "$work/good.yaml" --print-recipe model.num_layers=9
expect "explain" 0 "default" "1f1b" -- explain distributed.pipeline.pp_schedule
expect "explain an alias" 0 "distributed.tp_size" -- explain model.tensor_model_parallel_size
expect "explain another tool's word" 0 "write \`optimizer.lr\`" "peak learning rate" -- explain learning_rate
expect "explain a subject" 0 "optimizer.clip_grad" -- explain gradient norm
expect "a flag of another tool" 2 "learning_rate: there is no such key" "write \`optimizer.lr\`" -- \
  "$work/good.yaml" --dry-run --learning-rate 1e-3
expect "explain nonsense" 2 "did you mean" -- explain optimizer.lrr
expect "version" 0 "cpu" "cuda" -- --version
expect "schema for reading" 0 "## model" -- schema
"$repository/scripts/docs.sh" "$mtrain" "$work/docs" >"$work/out" 2>&1 || fail "scripts/docs.sh"
for made in reference pictures; do
  diff -r -x '*.png' "$repository/docs/$made" "$work/docs/$made" >"$work/out" ||
    fail "docs/$made is not what the program writes; run scripts/docs.sh and commit docs/"
done
"$mtrain" schema --json | python3 -m json.tool >"$work/out" 2>&1 || fail "schema --json is not JSON"

expect "schedule" 0 "step 99, idle 3.03 %" "rank 3" "7I15 7W12 3I12" "0 4" -- schedule --pp 4 --vpp 2 --micro 16 --name InterleavedZeroBubble
expect "schedule as actions" 0 "rank 0: 0F0, 0SEND_F0" -- schedule --pp 2 --micro 2 --name gpipe --actions
expect "schedule of a size that is none" 2 "do not make 2 equal rounds" "use 8 or 10 micro-batches" -- \
  schedule --pp 4 --vpp 2 --micro 9 --name interleaved_1f1b
expect "schedule of no such name" 2 "did you mean gpipe" -- schedule --name gpip
expect "schedule of two sources" 2 "exclude each other" -- schedule --from-csv x --pp 4
expect "schedule of experts" 0 "interleaved_1f1b: 8 stages" "paired exchanges 28.8, exposed 0.00 %" \
  "unpaired exchanges 28.8, exposed 18.75 %" "  ep   " -- schedule --moe-overlap --layers 2 --exchange 0.3 --chunks 4
expect "schedule of chunks of nothing" 2 "--chunks needs --exchange or --part" -- schedule --chunks 4
expect "schedule of measured parts" 0 "1f1b: 1 stages" "paired exchanges 120" "exposed 0.00 %" -- \
  schedule --moe-overlap --pp 1 --micro 16 --part attention=4,5,4 --part experts=3,3,3 --part exchange=2,2
expect "schedule of a part that is none" 2 "--part router=1: not a part of a pass" "attention, route, experts" -- \
  schedule --part router=1
expect "schedule of a part without times" 2 '"x" is not a time' -- schedule --part route=1,x
# The estimates, in which exchanges take longer than computations, give the order; the parts give the times.
expect "schedule of parts with their estimates" 0 "1f1b: 1 stages" "paired exchanges 120" -- \
  schedule --moe-overlap --pp 1 --micro 16 --part attention=4,5,4 --part experts=3,3,3 --part exchange=2,2 \
  --estimate attention=1,1,1 --estimate experts=1,1,1 --estimate exchange=9,9
expect "schedule of a part without an estimate" 2 "--part exchange=2,2 has no --estimate" "every --part" -- \
  schedule --part attention=4 --part exchange=2,2 --estimate attention=1
expect "schedule of estimates alone" 2 "--estimate needs --part" -- schedule --estimate attention=1
expect "schedule of chunks with latency" 0 "unpaired exchanges 320" -- \
  schedule --pp 1 --micro 16 --chunks 4 --part attention=4,5,4 --part experts=3,3,3 --part exchange=2,2 --exchange-latency 1
"$mtrain" schedule --pp 2 --micro 4 --name dualpipev --csv >"$work/schedule.csv"
expect "schedule from a table" 0 "4 stages on 2 ranks, 4 micro-batches" -- schedule --from-csv "$work/schedule.csv"
echo "0F0" >"$work/schedule.csv"
expect "schedule from a table that ends early" 2 "schedule.csv" "rank 0 does neither 0B0 nor 0I0" -- schedule --from-csv "$work/schedule.csv"
expect "schedule as a picture" 0 "s.svg: written" "s.html: written" -- schedule --svg "$work/s.svg" --html "$work/s.html"
"$mtrain" schedule --moe-overlap --exchange 0.3 --svg "$work/exchanges.svg" >"$work/out" || fail "schedule --svg of exchanges"
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/exchanges.svg" 2>"$work/out" || fail "schedule --svg of exchanges is not XML"
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/s.svg" 2>"$work/out" || fail "schedule --svg is not XML"

expect "a prediction" 0 "32 ranks: dp 32" "uncalibrated" "where the time goes" "memory of pp rank" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --world-size 32
expect "a prediction for all devices of a cluster" 0 '"ranks": 2' '"parts_s"' -- plan --recipe quickstart --cluster cpu_2cores --json
expect "memory by category" 0 '"memory_by_category"' '"planned"' '"recorded"' '"activations"' -- \
  plan --recipe quickstart --cluster cpu_2cores --json --memory
expect "memory by category as text" 0 "planned" "recorded" "activations" -- plan --recipe quickstart --cluster cpu_2cores --memory
expect "memory by category of a search" 2 "--memory" "shows one layout" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --search --memory
expect "a picture of a prediction" 0 "exposed pp" -- plan --recipe mixtral_8x7b --cluster dgx_h100 --timeline "$work/plan.svg"
python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/plan.svg" 2>"$work/out" || fail "plan --timeline is not XML"
expect "a picture without a pipeline" 0 "step  " -- plan --recipe quickstart --cluster cpu_2cores --timeline "$work/plan.html"
grep -q "<title>0F0 " "$work/plan.html" || fail "plan --timeline without a pipeline has no forward"
for recipe in quickstart quickstart_pipeline; do
  expect "a trace of a prediction, $recipe" 0 "step  " -- plan --recipe $recipe --cluster cpu_2cores --timeline "$work/plan.json"
  expect "a predicted trace on the terminal, $recipe" 0 "compute" "passes: F3" -- timeline "$work/plan.json"
done
expect "a timeline of an unknown kind" 2 "plan.png is neither a picture nor a trace" ".svg, .html or .json" -- \
  plan --recipe llama3_70b --cluster dgx_h100 --timeline "$work/plan.png"
expect "the guide beside predictions" 0 "grees: dense, below 3B: tp 1, pp 1" "grees: all: tp at most" "rows for other models" -- \
  plan --recipe llama3_2_1b --cluster dgx_h100 --world-size 8 --advice --free tp,pp,micro_batch
expect "the guide as JSON" 0 '"verdict": "agrees"' '"settings"' '"other_rows"' -- \
  plan --recipe llama3_2_1b --cluster dgx_h100 --world-size 8 --advice --free tp,micro_batch --json
expect "the guide, a search and a timeline" 2 "2 mistakes on the command line" "use one of the two" "shows one layout" -- \
  plan --recipe llama3_2_1b --cluster dgx_h100 --advice --search --timeline "$work/plan.svg"
expect "words of a search for the guide" 2 "--top: is for the layouts that a search ranks" "--output: is" -- \
  plan --recipe llama3_2_1b --cluster dgx_h100 --advice --top 3 --output "$work/best.yaml"
expect "a prediction on no cluster" 2 "dgx_h10: no such file" "did you mean dgx_h100?" -- plan --recipe llama3_8b --cluster dgx_h10
expect "a prediction on as many nodes as its ranks need" 0 "64 ranks: dp 64" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --world-size 64
printf 'gpu: h100\nnodes: 4\n' >"$work/cluster.yaml"
expect "a prediction on too few devices" 2 "1 mistake in the cluster file" "4 x 8 devices are too few for 64 ranks" \
  "write nodes: 8" -- plan --recipe llama3_8b --cluster "$work/cluster.yaml" --world-size 64
printf 'gpu: h100\nnods: 2\n' >"$work/cluster.yaml"
expect "a prediction of two wrong files" 2 "in the recipe and the cluster file" "cluster.yaml:2:1: error: nods" "optimizer.lrr" -- \
  plan --recipe llama3_8b --cluster "$work/cluster.yaml" --world-size 8 optimizer.lrr=1
expect "a prediction that contradicts its recipe" 2 "hardware.gpu: is h200, but the cluster has h100" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --world-size 32 hardware.gpu=h200
expect "a search for layouts" 0 "layouts on " "the recipe's own layout" "do not fit into the memory" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --world-size 32 --search --free tp,micro_batch --write 1 --output "$work/best.yaml"
expect "a search as JSON" 0 '"ranked"' '"settings"' '"out"' '"left"' -- \
  plan --recipe llama3_8b --cluster dgx_h100 --world-size 32 --search --free tp,micro_batch --json
expect "the recipe of a ranked layout" 0 "fits" -- --recipe "$work/best.yaml" --dry-run --world-size 32
expect "a search over another field" 2 "on the command line" '`tq` is not a field of a layout' '`a` is not a field' "did you mean tp?" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --search --free tq --fix a=b
expect "a search without a legal layout" 2 "none of " "do not divide the ranks" -- \
  plan --recipe llama3_8b --cluster dgx_h100 --search --fix tp=64
expect "words of a search without one" 2 "add --search" -- plan --recipe llama3_8b --cluster dgx_h100 --free tp
expect "a plan that cannot be predicted" 2 "cannot be predicted" "Muon" -- \
  plan --recipe quickstart --cluster cpu_2cores optimizer.name=muon

echo '{"traceEvents":[{"name":"norm_fwd","ph":"X","pid":0,"tid":0,"ts":0,"dur":9}]}' >"$work/t.json"
expect "timeline" 0 "0.009 ms from 0.000 ms on" "n norm" -- timeline "$work/t.json"
expect "timeline of a step that is none" 2 "does not have the times of its steps" -- timeline "$work/t.json" --step 1
expect "timeline of no trace" 2 "good.yaml: not JSON at byte 1" -- timeline "$work/good.yaml"

mkdir -p "$work/runs/a"
printf '{"step":%d,"loss":%d.5,"time":1795673747.5}\n' 1 3 2 2 >"$work/runs/a/metrics.jsonl"
printf '{"step":2,"validation_loss":2.25}\n{"step":3,"lo' >>"$work/runs/a/metrics.jsonl"
LC_ALL=C expect "a picture" 0 "loss (*) and validation loss (o)" "step 2, loss 2.5000, best validation loss 2.2500 at step 2" -- \
  watch "$work/runs/a" --columns 300
LC_ALL=C.UTF-8 expect "a picture of two runs" 0 "loss (A B)" "┤" "B $work/runs/a/metrics.jsonl: step 2" -- \
  watch "$work/runs/a" "$work/runs/a/metrics.jsonl" --once --columns 300
expect "metrics as CSV" 0 "step,time,loss,validation_loss" "2,1795673747.5,2.5,2.25" -- watch "$work/runs/a" --csv
expect "a picture of no run" 2 "did you mean $work/runs?" -- watch "$work/run"
expect "a picture of a folder of runs" 2 "no metrics.jsonl" "the runs in it are $work/runs/a" -- watch "$work/runs"
expect "a picture of a key that is none" 2 "did you mean loss?" -- watch "$work/runs/a" --key lss
expect "a picture of several keys" 2 "shows one key" -- watch "$work/runs/a" --key loss,lr
expect "a picture of seven runs" 2 "at most 6 runs, and 7 are given" -- watch a b c d e f g
expect "a picture that follows a pipe" 2 "needs a terminal" -- watch "$work/runs/a" --follow
expect "a picture of another file" 2 "has no record of a step" -- watch "$work/good.yaml"
: >"$work/runs/a/metrics.jsonl"
expect "a picture of an empty file" 2 "is empty: the run has not finished its first step" -- watch "$work/runs/a"

mkdir -p "$work/runs/b" "$work/runs/c"
printf '{"step":%d,"loss":%s,"step_ms":5}\n' 1 4 2 3 3 2 >"$work/runs/a/metrics.jsonl"
printf '{"step":%d,"loss":%s,"step_ms":10}\n' 1 4 2 3.00001 3 2.5 >"$work/runs/b/metrics.jsonl"
: >"$work/runs/c/metrics.jsonl"
expect "equal runs" 0 "loss: equal in all 3 records" "the recipes cannot be compared" -- compare "$work/runs/a" "$work/runs/a"
expect "runs that differ" 1 "loss differs from step 3 on" "differs first at step 3: 2 and 2.5" "2.000" -- \
  compare "$work/runs/a" "$work/runs/b" --tolerance 1e-4
expect "runs within a tolerance" 0 "agrees to 0.3 in all 3 records; largest difference 0.2 at step 3" -- \
  compare "$work/runs/a" "$work/runs/b" --tolerance 0.3
expect "runs compared as JSON" 1 '"within_tolerance": false' '"step": 3' -- compare "$work/runs/a" "$work/runs/b" --tolerance 1e-4 --json
expect "a comparison with an empty file" 2 "is empty" -- compare "$work/runs/a" "$work/runs/c"
expect "a comparison of a key that is none" 2 "did you mean loss?" -- compare "$work/runs/a" "$work/runs/b" --key lss
expect "a comparison of runs without recipes" 1 "(of fp32; the recipes are unknown)" "for runs in 16 bits give --tolerance 2e-2" -- \
  compare "$work/runs/a" "$work/runs/b"
expect "a comparison of one run" 2 "for example mtrain compare" -- compare "$work/runs/a"
expect "a report" 0 "written: $work/r.html" -- report "$work/runs/a" "$work/runs/b" "$work/runs/c" -o "$work/r.html"
python3 - "$work/r.html" <<'PY' >"$work/out" 2>&1 || fail "the page of a report"
import html.parser, json, sys
page = open(sys.argv[1]).read()
class Parser(html.parser.HTMLParser):
    void = {"meta"}
    def __init__(self):
        super().__init__()
        self.open, self.data, self.ids = [], "", set()
    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        assert "src" not in names and "href" not in names, names
        self.ids.add(names.get("id"))
        if tag not in self.void:
            self.open.append((tag, names.get("id")))
    def handle_endtag(self, tag):
        assert self.open and self.open.pop()[0] == tag, tag
    def handle_data(self, data):
        if self.open and self.open[-1] == ("script", "data"):
            self.data += data
parser = Parser()
parser.feed(page)
parser.close()
assert not parser.open, parser.open
assert {"data", "charts", "tables", "theme"} <= parser.ids, parser.ids
runs = json.loads(parser.data)["runs"]
assert [run["series"].get("loss", {}).get("y") for run in runs] == [[4, 3, 2], [4, 3.00001, 2.5], None], runs
PY
expect "a report of empty runs" 2 "is empty" -- report "$work/runs/c" -o "$work/r.html"
expect "a report into no folder" 1 "$work/nowhere" -- report "$work/runs/a" -o "$work/nowhere/r.html"
expect "a report of seven runs" 2 "at most 6 runs" -- report a b c d e f g

# Completion offers commands, settings and their values.
completes() {
  local want=$1
  shift
  (
    source <("$mtrain" completion bash)
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _mtrain_words 2>/dev/null
    printf '%s\n' "${COMPREPLY[@]}"
  ) >"$work/out"
  grep -qxF -- "$want" "$work/out" || fail "completion of '$*' lacks $want"
}
completes explain mtrain exp
completes --format mtrain data build --f
completes optimizer.lr= mtrain --recipe x optimizer.l
completes megatron_ddp mtrain distributed.strategy = meg
completes zsh mtrain completion ""
completes "$work/runs" mtrain watch "$work/run"
completes verify mtrain checkpoint ver
completes --keep-every mtrain checkpoint prune --keep
completes "$work/runs" mtrain checkpoint list "$work/run"
completes --smooth mtrain watch --sm
completes --micro mtrain schedule --mi
completes llama3_8b mtrain --recipe llama3_8
completes llama3_8b mtrain -c llama3_8
completes optimizer.lr= "${mtrain%/*}/mtrain-launch" --nproc_per_node=2 optimizer.l
completes --nproc_per_node "${mtrain%/*}/mtrain-launch" --npr
completes --stride mtrain eval --str
mkdir -p "$work/hub/models--org--tiny-1.5"
export HF_HUB_CACHE=$work/hub
completes org/tiny-1.5 mtrain generate --model org/t
completes org/tiny-1.5 mtrain import hf org
completes org/tiny-1.5 mtrain model.from = org/
# The same in fish, where it is installed.
completes_in_fish() {
  PATH=$(dirname "$(realpath "$mtrain")"):$PATH fish --no-config -c \
    'mtrain completion fish | source; complete -C "$argv[1]"' -- "$2" </dev/null 2>&1 | cut -f 1 >"$work/out"
  grep -qxF -- "$1" "$work/out" || fail "completion of '$2' in fish lacks $1"
}
grep -qF "case status timeline watch compare report 'checkpoint *'" <("$mtrain" completion fish) || fail "completion of paths for fish"
grep -qF "complete -c mtrain-launch" <("$mtrain" completion fish) || fail "completion for fish"
if command -v fish >/dev/null; then
  completes_in_fish explain "mtrain exp"
  completes_in_fish --format "mtrain data build --f"
  completes_in_fish optimizer.lr= "mtrain --recipe x optimizer.l"
  completes_in_fish distributed.strategy=megatron_ddp "mtrain distributed.strategy=meg"
  completes_in_fish fish "mtrain completion "
  completes_in_fish org/tiny-1.5 "mtrain generate --model org/t"
  completes_in_fish model.from=org/tiny-1.5 "mtrain model.from=org"
  completes_in_fish llama3_8b "mtrain -c llama3_8"
  completes_in_fish optimizer.lr "mtrain explain optimizer.l"
  completes_in_fish optimizer.lr= "mtrain-launch --nproc_per_node=2 optimizer.l"
  completes_in_fish --nproc_per_node "mtrain-launch --npr"
  completes_in_fish "$work/runs/" "mtrain watch $work/run"
  completes_in_fish "$work/t.json" "mtrain timeline $work/t.j"
fi
unset HF_HUB_CACHE
# Models in and out.
hf=$(cd "$(dirname "$0")/../golden/hf" && pwd)
expect "a dry run of an import" 0 "qwen2 (Qwen2ForCausalLM)" "3 files" "BF16" "Every tensor is mapped" -- \
  import hf "$hf/qwen2" --dry-run
expect "an import to nowhere" 2 "neither --output nor --dry-run" "hint" -- import hf "$hf/qwen2"
expect "an import by the name of a model on the Hub" 2 "nothing is downloaded" -- \
  import hf meta-llama/Llama-3.2-1B --dry-run
mkdir "$work/wrong" && sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false, "logit_scale": 2/' \
  "$hf/qwen2_tied/config.json" >"$work/wrong/config.json" && cp "$hf/qwen2_tied/model.safetensors" "$work/wrong"
expect "a key that is not understood" 2 "logit_scale" "--ignore-keys logit_scale" -- import hf "$work/wrong" --dry-run
expect "a key that is passed over" 2 "missing: lm_head.weight" -- import hf "$work/wrong" --dry-run --ignore-keys logit_scale
sed -i 's/"logit_scale": 2/"hidden_size": 16/' "$work/wrong/config.json"
expect "a key that stands twice" 2 "$work/wrong/config.json" "\`hidden_size\` is given twice" -- import hf "$work/wrong" --dry-run
sed -i 's/, "hidden_size": 16//' "$work/wrong/config.json"
expect "a tensor that is missing" 2 "missing: lm_head.weight" -- import hf "$work/wrong" --dry-run
expect "an import" 0 "written: $work/imported/step-00000000" -- import hf "$hf/gpt2" --output "$work/imported"
expect "an export" 0 "gpt2" "2 files" -- \
  export hf "$work/imported" --output "$work/exported/" --dtype fp32 --max-shard-size 80KB
expect "an export over a folder" 2 "exists already" -- export hf "$work/imported" --output "$work/exported"
mkdir "$work/other.tmp-999999999-$(hostname)"
expect "an export after one that was killed" 0 "removed $work/other.tmp-999999999" "written: $work/other" -- \
  export hf "$work/imported" --output "$work/other"
[[ -e $work/other.tmp-999999999-$(hostname) ]] && fail "what a killed export left stays"
expect "an import over a folder" 2 "exists already" -- import hf "$hf/gpt2" --output "$work/other"
mkdir "$work/gguf" && touch "$work/gguf/tiny.gguf"
for command in "import hf $work/gguf --dry-run" "generate --model $work/gguf --prompt a" "eval --model $work/gguf --data x"; do
  # shellcheck disable=SC2086  # the words of a command
  expect "GGUF: $command" 2 "error: $work/gguf holds weights as GGUF (tiny.gguf)" "gguf_file=" -- $command
done
expect "a size that is none" 2 "not a number of bytes" -- \
  export hf "$work/imported" --output "$work/third" --max-shard-size much
expect "an export of nothing" 2 "no complete checkpoint" -- export hf "$work" --output "$work/third"
# Generation and evaluation.
expect "generate without a prompt" 2 "--prompt" -- generate --run "$work"
expect "two sources of prompts" 2 "--prompts" -- generate --run "$work" --prompt a --prompts b
expect "draws where nothing is drawn" 2 "--top-p has no effect" "hint" -- \
  generate --run "$work" --prompt a --temperature 0 --top-p 0.5
expect "texts that would be equal" 2 "--num 3" "hint" -- generate --run "$work" --prompt a --temperature 0 --num 3
expect "an id that is none" 2 "--eos" -- generate --run "$work" --prompt a --eos -4
expect "a folder instead of prompts" 2 "$work is not a regular file, but a folder" -- generate --run "$work" --prompts "$work"
expect "a device instead of prompts" 2 "/dev/zero is not a regular file" -- generate --run "$work" --prompts /dev/zero
: >"$work/no_prompts"
expect "a file without prompts" 2 "holds no prompt" -- generate --run "$work" --prompts "$work/no_prompts"
for option in --temperature --top-p --min-p --repetition-penalty; do
  for value in nan -nan inf 1e400; do
    expect "$option $value" 2 "$option" -- generate --run "$work" --prompt a "$option" "$value"
  done
done
# Files that are not regular files are refused by name, and never block.
mkdir "$work/pipes" && cp "$hf/qwen2_tied/"* "$work/pipes"
for file in config.json model.safetensors; do
  rm "$work/pipes/$file" && mkfifo "$work/pipes/$file"
  expect "a pipe as $file" 2 "$file is not a regular file, but a pipe" -- import hf "$work/pipes" --dry-run
  rm "$work/pipes/$file" && cp "$hf/qwen2_tied/$file" "$work/pipes"
done
mkfifo "$work/pipes/model.safetensors.index.json"
expect "a pipe as an index" 2 "index.json is not a regular file" -- import hf "$work/pipes" --dry-run
expect "a pipe as a tokenizer" 2 "is not a regular file" -- data build -i "$work/good.yaml" -o "$work/x" -t "$work/pipes/model.safetensors.index.json"
(cd "$work" && "$mtrain" --recipe pipes/model.safetensors.index.json --dry-run) >"$work/out" 2>&1 || grep -q "is not a file" "$work/out" ||
  fail "a pipe as a recipe"
expect "a pipe as a trace" 2 "is not a regular file" -- timeline "$work/pipes/model.safetensors.index.json"
expect "a model that is none" 2 "no complete checkpoint" -- eval --model "$work" --data "$work/set"
# A Hugging Face folder as it is.
cp -r "$hf/llama" "$work/llama" && cp "$hf"/expected/tokenizer/* "$work/llama"
echo '{"eos_token_id": [62, 63]}' >"$work/llama/generation_config.json"
echo -n "Any words will do, as long as they are of letters: there are many, and none of them is known." >"$work/words.txt"
expect "data for a folder" 0 "tokens" -- data build --input "$work/words.txt" --output "$work/words" --tokenizer "$work/llama"
expect "an evaluation of a folder" 0 "nats per token" "bits per byte" "windows of 16 tokens, 5 apart" -- \
  eval --model "$work/llama" --data "$work/words" --stride 5 dataset.seq_length=16
mv "$work/llama/tokenizer.json" "$work"
expect "an evaluation without a tokenizer" 0 "nats per token, perplexity" -- eval --model "$work/llama" --data "$work/words"
expect "a text without a tokenizer" 2 "no tokenizer at $work/llama/tokenizer.json" -- \
  generate --model "$work/llama" --prompt Hey
mv "$work/tokenizer.json" "$work/llama"
expect "a text of a folder" 0 "Hey" -- generate --model "$work/llama" --prompt Hey --tokens 5 --temperature 0
cp "$work/out" "$work/by_model"
expect "a text by another name" 0 "Hey" -- generate --run "$work/llama" --prompt Hey --tokens 5 --temperature 0
cmp -s "$work/out" "$work/by_model" || fail "--run and --model differ"
expect "a folder of none" 2 "nothing is downloaded" -- generate --model org/model --prompt a
expect "an empty stop" 2 "would end every text" -- generate --model "$work/llama" --prompt Hey --stop ""
printf '\nHey\r\n' >"$work/prompts.txt"
expect "a file of one prompt" 0 '{"prompt":0,"sample":0,"text":"Hey' -- \
  generate --model "$work/llama" --prompts "$work/prompts.txt" --tokens 5 --temperature 0
printf 'Hey\n\n%0200d\n' 0 | tr 0 a >"$work/prompts.txt"
expect "a prompt that is too long" 2 "the prompt at $work/prompts.txt:3 has" -- \
  generate --model "$work/llama" --prompts "$work/prompts.txt" --tokens 5
if [[ -w /dev/full ]]; then
  "$mtrain" generate --model "$work/llama" --prompt Hey --tokens 5 >/dev/full 2>"$work/err" && fail "nothing says that the disk is full"
  grep -q "cannot write the text: No space left" "$work/err" || fail "a full disk: $(cat "$work/err")"
fi
# A chat: each line of the input is a message, and its prompt is the text of the conversation so far.
template='{% for m in messages %}{{ m.role[0] }} {{ m.content }} z{% endfor %}{% if add_generation_prompt %}a{% endif %}'
echo -n "$template" >"$work/chat.jinja"
talk() { "$mtrain" generate --model "$work/llama" --chat --tokens 6 --temperature 0 --bos none "$@" 2>"$work/err"; }
answer() { # the text that follows a prompt
  "$mtrain" generate --model "$work/llama" --prompt "$1" --tokens 6 --temperature 0 --bos none --stop z 2>/dev/null | tail -c +$((${#1} + 1))
}
first=$(answer "u Hey za")
second=$(answer "u Hey za $first zu More za")
printf 'Hey\n\nMore' | talk --chat-template "$work/chat.jinja" >"$work/out" || fail "a chat by a pipe: $(cat "$work/err")"
[[ $(cat "$work/out") == "$first"$'\n'"$second" ]] || fail "a chat says $(cat "$work/out") instead of $first, $second"
cp "$work/chat.jinja" "$work/llama/chat_template.jinja"
printf 'Hey\r\n' | talk --system Be >"$work/out" || fail "a chat by the model's template: $(cat "$work/err")"
[[ $(cat "$work/out") == "$(answer "s Be zu Hey za")" ]] || fail "a chat with a system message: $(cat "$work/out")"
talk </dev/null >"$work/out" || fail "a chat without messages"
[[ ! -s $work/out ]] || fail "a chat without messages says $(cat "$work/out")"
expect "a message that the template refuses" 2 "line 1: the template says: no" -- \
  generate --model "$work/llama" --chat --chat-template "{{ raise_exception('no') }}"
rm "$work/llama/chat_template.jinja"
expect "a chat without a template" 2 "has no chat template" "--chat-template FILE" -- generate --model "$work/llama" --chat
expect "a template without a chat" 2 "--chat-template has no effect without --chat" -- \
  generate --model "$work/llama" --prompt a --chat-template x
expect "a chat of several texts" 2 "--num has no effect on a chat" -- generate --model "$work/llama" --chat --num 2
expect "a chat and a prompt" 2 "--prompt" -- generate --model "$work/llama" --chat --prompt a
# Conversations become tokens with a mask, train in packs, and can be shown.
for i in {1..40}; do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q $i\"}, {\"role\": \"assistant\", \"content\": \"a $i\"}]}"
done >"$work/talks.jsonl"
expect "a build of conversations" 0 "40 documents" "labels" -- data build --input "$work/talks.jsonl" \
  --messages-field messages --chat-template "$work/chat.jinja" --output "$work/talks"
expect "a sample with its labels" 0 "sample 2 of 40" "u q 3 za[[ a 3 z]]" -- data show "$work/talks" --sample 2
expect "a sample that is none" 2 "there is no sample 40" "give --sample 0 to 39" -- data show "$work/talks" --sample 40
expect "a build without a template" 2 "the tokenizer byte has no chat template" -- data build --input "$work/talks.jsonl" \
  --messages-field messages --output "$work/talks"
expect "a template without messages" 2 "--chat-template has no effect" -- data build --input "$work/talks.jsonl" \
  --chat-template "$work/chat.jinja" --output "$work/talks"
# Prompts and answers: of each 5 tokens the last two are labels.
for _ in {1..20}; do echo '{"prompt": "a b", "answer": "c"}'; done >"$work/pairs.jsonl"
echo '{"messages": [{"role": "user", "content": "a"}]}' >"$work/chat.jsonl"
expect "a build of conversations" 2 "chat.jsonl:1: the line holds a conversation, \"messages\"" "--messages-field messages" -- \
  data build --input "$work/chat.jsonl" --output "$work/chat"
expect "a build of pairs without their options" 2 "--prompt-field prompt --answer-field answer" -- \
  data build --input "$work/pairs.jsonl" --output "$work/pairs"
echo '{"id": "7", "body": "the longest text"}' >"$work/body.jsonl"
expect "a build of texts by another name" 2 "string fields: body, id" "add --json-field body" -- \
  data build --input "$work/body.jsonl" --output "$work/body"
expect "a build of answers without prompts" 2 "the prompt has no field" "--prompt-field" -- \
  data build --input "$work/pairs.jsonl" --answer-field answer --output "$work/pairs"
expect "a build of pairs" 0 "20 documents, 100 tokens, 40 of them labels" -- \
  data build --input "$work/pairs.jsonl" --prompt-field prompt --answer-field answer --output "$work/pairs"
expect "a build over another" 0 "info: replaces the tokens of $work/pairs" "20 documents" -- \
  data build --input "$work/pairs.jsonl" --prompt-field prompt --answer-field answer --output "$work/pairs"
echo '{"prompt": "a", "answer": ""}' >"$work/no_answer.jsonl"
expect "a build of an answer without a token" 0 "answers without a token: 1" -- \
  data build --input "$work/no_answer.jsonl" --prompt-field prompt --answer-field answer --output "$work/no_answer"
expect "a training on answers" 0 "pairs.bin: masked; 6 sequences of 16" -- --recipe "$work/good.yaml" tokenizer=byte \
  model.vocab_size=0 model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "dataset.train=$work/pairs" \
  dataset.seq_length=16 train.steps=1 train.global_batch_size=2 train.micro_batch_size=2 train.threads=1 \
  mixed_precision=fp32 "train.run_dir=$work/answers"
"$mtrain" --recipe "$work/good.yaml" tokenizer=byte model.vocab_size=0 model.num_layers=1 model.hidden_size=32 \
  model.num_attention_heads=2 "dataset.train=$work/pairs" dataset.seq_length=16 train.steps=1 train.global_batch_size=2 \
  train.micro_batch_size=2 train.threads=1 mixed_precision=fp32 "train.run_dir=$work/closed" <&- >&- 2>&- ||
  fail "a training without standard streams"
grep -rlqF "tok/s" "$work/closed/checkpoints" "$work/pairs.bin" && fail "what is printed went into a file"
expect "an evaluation of a training without standard streams" 0 "over 40 tokens" -- \
  eval --model "$work/closed" --data "$work/pairs"
best=(--recipe "$work/good.yaml" tokenizer=byte model.vocab_size=0 model.num_layers=1 model.hidden_size=32
  model.num_attention_heads=2 "dataset.train=$work/pairs" "dataset.validation=$work/pairs" dataset.seq_length=16
  train.global_batch_size=2 train.micro_batch_size=2 train.threads=1 mixed_precision=fp32)
expect "a run without a best checkpoint" 2 "$work/answers/checkpoints has no best checkpoint" "checkpoint.keep_best=1" -- \
  "${best[@]}" train.steps=2 "train.run_dir=$work/answers" checkpoint.load=best
expect "a run that keeps the best" 0 "kept as best" -- \
  "${best[@]}" train.steps=1 "train.run_dir=$work/best" checkpoint.keep_best=1 validation.every_steps=1
expect "a run that continues from the best" 0 "continuing after step 1" -- \
  "${best[@]}" train.steps=2 "train.run_dir=$work/best" checkpoint.load=best
expect "an evaluation on answers" 0 "over 40 tokens (20 bytes) in 20 samples of 16 tokens" -- \
  eval --model "$work/answers" --data "$work/pairs"
((failures == 0)) && echo "all well"
exit $((failures > 0))
