#!/usr/bin/env bash
# Compares the messages for typical mistakes with test/golden/mistakes.txt, which people read to judge them.
#   test/process/mistakes_test.sh <mtrain> <mtrain-launch> [file to write instead of comparing]
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2") write=${3:+$(realpath -m "$3")}
golden=$(cd "$(dirname "${BASH_SOURCE[0]}")/../golden" && pwd)/mistakes.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT HF_HOME XDG_CACHE_HOME
export HF_HUB_CACHE=hub HOME=home  # messages name them
export NO_COLOR=1
number=0

# run <exit code> <program> <arguments>...: adds the command and its output.
run() {
  local want=$1 program=$2 code
  shift 2
  printf '$ %s' "$program" >>out
  local word
  for word in "$@"; do
    [[ $word == *[\ \;\{\[]* ]] && word="'$word'"
    printf ' %s' "$word" >>out
  done
  printf '\n' >>out
  case $program in mtrain) program=$mtrain ;; *) program=$launch ;; esac
  timeout 60 "$program" "$@" </dev/null 2>&1 | sed -e "s|$work|FOLDER|g" -e '/% tokenized/d' >>out
  code=${PIPESTATUS[0]}
  ((code == want)) || echo "exit code $code instead of $want" >>out
}

# mistake <title> <recipe, or nothing> <program> <arguments>...
mistake() {
  local title=$1 recipe=$2
  shift 2
  number=$((number + 1))
  printf '\n## %s. %s\n' "$number" "$title" >>out
  if [[ $recipe ]]; then
    printf '%b' "$recipe" >r.yaml
    sed 's/^/    /' r.yaml >>out
  fi
  run 2 "$@"
}

cat >out <<'TEXT'
# 36 typical mistakes and their messages
# Written by test/process/mistakes_test.sh, which compares it; the last argument of that script writes it again.
TEXT

model='model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, vocab_size: 512}\n'
rest='dataset: {train: data/corpus, seq_length: 1024}\ntrain: {global_batch_size: 32}\n'
good="$model$rest"
mkdir -p data
printf 'x' | tee data/corpus.bin >data/corpus.idx

mistake "a misspelt key" "${model}${rest}optimizer: {learing_rate: 1e-3, wieght_decay: 0.1}\n" mtrain r.yaml
mistake "words of transformers" "${good}learning_rate: 1e-3\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nnum_train_epochs: 3\nwarmup_ratio: 0.1\n" mtrain r.yaml
mistake "sections of torchtitan" "${good}training: {seq_len: 2048, local_batch_size: 2, steps: 100}\nparallelism: {tensor_parallel_degree: 2}\nactivation_checkpoint: {mode: full}\n" mtrain r.yaml
mistake "a key that resembles no other" "${good}optimizer: {colour: red}\n" mtrain r.yaml
mistake "a line that is indented by one blank" 'model:\n  num_layers: 8\n hidden_size: 256\n' mtrain r.yaml
mistake "a tab" 'model:\n\tnum_layers: 8\n' mtrain r.yaml
mistake "words instead of numbers and truth values" "${good}optimizer: {lr: fast}\ndistributed: {sequence_parallel: maybe}\n" mtrain r.yaml
mistake "heads that do not divide the width" "model: {num_layers: 8, hidden_size: 128, num_attention_heads: 6, vocab_size: 512}\n$rest" mtrain r.yaml
mistake "tensor parallelism that does not divide the heads" "${good}distributed: {tp_size: 3}\n" mtrain r.yaml --dry-run --world-size 3
mistake "a batch that dp and micro-batch do not divide" "${model}dataset: {train: data/corpus}\ntrain: {global_batch_size: 30, micro_batch_size: 4}\n" mtrain r.yaml --dry-run --world-size 3
mistake "a world that the sizes do not divide" "${good}distributed: {tp_size: 2, cp_size: 2}\n" mtrain r.yaml --dry-run --world-size 6
mistake "a pipeline without its section" "${good}distributed: {pp_size: 4}\n" mtrain r.yaml --dry-run --world-size 4
mistake "micro-batches that a schedule cannot have" "${model}dataset: {train: data/corpus}\ntrain: {global_batch_size: 9}\ndistributed: {pp_size: 4, vpp_size: 2, pipeline: {pp_schedule: interleaved_1f1b}}\n" mtrain r.yaml --dry-run --world-size 4
mistake "a setting of another strategy" "${good}ddp: {bucket_size: 1000000}\ndistributed: {strategy: fsdp2}\n" mtrain r.yaml
mistake "a strategy that does not exist" "${good}distributed: {strategy: fsdp3}\n" mtrain r.yaml
mistake "a model that is not supported" "model: {architecture: deepseek_v4, num_layers: 8}\n$rest" mtrain r.yaml
mistake "two names of one setting" "${good}model.tensor_model_parallel_size: 2\ndistributed: {tp_size: 4}\n" mtrain r.yaml
mistake "a checkpoint to fine-tune" "${good}checkpoint: {pretrained_checkpoint: /models/llama, finetune: true}\n" mtrain r.yaml
mistake "experts on a dense model" "${good}distributed: {ep_size: 4}\n" mtrain r.yaml --dry-run --world-size 4
echo '{"content": "some text"}' >data/texts.jsonl
mistake "a text as data" "${model}dataset: {train: data/texts.jsonl}\n" mtrain r.yaml
mistake "a file of the data instead of their prefix" "${model}dataset: {train: data/corpus.bin}\n" mtrain r.yaml
mistake "data in another folder" "${model}dataset: {train: ../data/corpus}\n" mtrain r.yaml
mistake "lines of JSON without the field text" "" mtrain data build --input data/texts.jsonl --output data/texts
printf '%b' "$good" >good.yaml
mistake "blanks around =" "" mtrain good.yaml optimizer.lr = 1e-3
mistake "a setting without =" "" mtrain good.yaml optimizer.lr 1e-3
mistake "a list with blanks" "" mtrain good.yaml optimizer.betas=[0.9, 0.95]
mistake "a recipe that does not exist" "" mtrain god.yaml
mistake "a ready recipe that does not exist" "" mtrain --recipe llama3_9b
mistake "no recipe" "" mtrain --dry-run
mistake "a misspelt command" "" mtrain shedule --pp 4
mistake "a misspelt option" "" mtrain good.yaml --dry-rn
mistake "a value that is not a number" "" mtrain good.yaml --dry-run --world-size eight
mistake "two options that exclude each other" "" mtrain schedule --from-csv x.csv --pp 4
mistake "an option that is missing" "" mtrain eval --data data/corpus
mistake "a misspelt option of the launcher" "" mtrain-launch --nproc-per-nod 2 good.yaml
mistake "localhost for several hosts" "" mtrain-launch --nnodes 2 --node_rank 0 --master_addr localhost --master_port 29500 good.yaml
mistake "a quote that is not closed" 'dataset:\n  train: "data/corpus\n  seq_length: 8\n' mtrain r.yaml
mistake "a colon without a space" 'model:\n  num_layers:8\n  hidden_size: 256\n' mtrain r.yaml
mistake "a comma that is missing" 'model: {num_layers: 8 hidden_size: 256}\n' mtrain r.yaml
mistake "a brace that is not closed" "model: {num_layers: 8\\n$rest" mtrain r.yaml
mistake "a comma within a number" "${model}dataset: {train: data/corpus, seq_length: 2,048}\\n" mtrain r.yaml
mistake "a TOML file" '[model]\nname = "llama3"\n' mtrain r.yaml
mistake "the name of a model as its section" "model: meta-llama/Llama-3.2-1B\\n$rest" mtrain r.yaml
mistake "an option of the launcher after the recipe" "" mtrain good.yaml --nproc_per_node 2
mistake "an option of other launchers" "" mtrain-launch --nproc 2 good.yaml
mistake "a port in the address" "" mtrain-launch --master_addr 127.0.0.1:29511 good.yaml
mistake "hosts without numbers" "" mtrain-launch --nnodes 2 --master_addr 192.0.2.1 good.yaml
touch train.py
mistake "a Python script" "" mtrain-launch --nproc_per_node 2 train.py
mistake "a command of another tool" "" mtrain finetune llm -c good.yaml
mistake "a ready recipe as a file" "" mtrain recipes/quickstart.yaml
mistake "an option of Megatron's preprocess_data.py" "" mtrain data build --input data/texts.jsonl --output-prefix data/texts
printf 'PAR1\025\004' >data/texts.parquet
mistake "a Parquet file" "" mtrain data build --input data/texts.parquet --output data/texts
printf 'caf\351\n' >data/latin.txt
mistake "text in another encoding" "" mtrain data build --input data/latin.txt --output data/texts
mistake "a tokenizer by its name" "" mtrain data build --input data/latin.txt --output data/texts --tokenizer meta-llama/Llama-3.1-8B

# Rows of text that a run tokenizes itself.
rows() { printf '%s' "${model}dataset: {train: $1, cache_dir: cache}\ntrain: {steps: 1, run_dir: run}\n"; }
chat='{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
echo "$chat" >data/chat.jsonl
echo '{"messages": [{"content": "a"}, {"role": "assistant", "content": "b"}]}' >data/no_role.jsonl
echo '{"question": "a", "answer": "b"}' >data/pairs.jsonl
echo '{{ messages[0].role }}' >data/role.jinja
echo '{{ raise_exception("nobody may be " + messages[0].role) }}' >data/raise.jinja
seq 100000 | sed 's/.*/{"prompt": "&", "completion": "&"}/; 77124s/"completion"/completion/' >data/many.jsonl
mkdir -p hub/datasets--org--rows/{refs,snapshots/abc} hub/datasets--org--half/{refs,snapshots/abc}
echo abc | tee hub/datasets--org--rows/refs/main hub/datasets--org--half/refs/main >/dev/null
cp data/pairs.jsonl hub/datasets--org--rows/snapshots/abc/train.jsonl
ln -s ../../blobs/none hub/datasets--org--half/snapshots/abc/train.jsonl
mistake "a data set that is not in the cache" "$(rows '{messages: org/none}')" mtrain r.yaml
mistake "a revision that is not in the cache" "$(rows '{messages: org/rows@v2}')" mtrain r.yaml
mistake "half a data set in the cache" "$(rows '{messages: org/half}')" mtrain r.yaml
mistake "a split that the data do not have" "$(rows '{messages: org/rows, split: test}')" mtrain r.yaml
mistake "a message without a role" "$(rows '{messages: data/no_role.jsonl, template: data/role.jinja}')" mtrain r.yaml
mistake "a chat template that raises" "$(rows '{messages: data/chat.jsonl, template: data/raise.jinja}')" mtrain r.yaml
mistake "conversations without a chat template" "$(rows '{messages: data/chat.jsonl}')" mtrain r.yaml
mistake "columns that do not exist" "$(rows '{prompt_completion: data/pairs.jsonl}')" mtrain r.yaml
mistake "a broken row of many" "$(rows '{prompt_completion: data/many.jsonl}')" mtrain r.yaml
mistake "a key of rows that does not exist" "$(rows '{messages: data/chat.jsonl, templat: chat.jinja}')" mtrain r.yaml
mistake "a broken row that a dry run reads" "$(rows '{prompt_completion: data/pairs.jsonl, prompt: "{question}", completion: "{anser}"}')" mtrain r.yaml --dry-run
mistake "a file of rows that does not exist" "$(rows '{messages: data/chats.jsonl}')" mtrain r.yaml

# A model of which only some files were downloaded.
mkdir -p hub/models--org--small/{refs,snapshots/abc}
echo abc >hub/models--org--small/refs/main
cp "${golden%/*}/hf/llama/config.json" hub/models--org--small/snapshots/abc/
mistake "a model of the Hub without its tokenizer" "model: {from: org/small}\ndataset: {train: {messages: data/chat.jsonl}, cache_dir: cache}\n" mtrain r.yaml
mistake "a model of the Hub without its weights" "" mtrain generate --model org/small --prompt a

mistake "a ring whose chunks 8-bit GEMMs cannot have" "model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, ffn_hidden_size: 1024, vocab_size: 512}\ndataset: {train: data/corpus, seq_length: 1028}\ntrain: {device: cuda, global_batch_size: 32}\nmixed_precision: {name: bf16_mixed, fp8: hybrid, fp8_recipe: blockwise}\ndistributed: {strategy: megatron_ddp, tp_size: 2, sequence_parallel: true}\ncomm_overlap: {tp_comm_overlap: true, tp_comm_overlap_cfg: {qkv_fprop: {method: ring_exchange}}}\n" mtrain r.yaml --dry-run --world-size 2

sed -i "1s/.*/# $number typical mistakes and their messages/" out
if [[ $write ]]; then
  cp out "$write"
else
  diff "$golden" out && echo "all well"
fi
