#!/usr/bin/env python3
"""Measures how fast checkpoints are saved and loaded, beside fio's sequential rates on the same disk.

    scripts/bench/checkpoint_speed.py [--build build/release] [--folder .] [--rounds 3] [--ranks 1,2,4]
                                      [--models 124M,1B] [--io-threads 4]

Needs the program bench_checkpoint (the target `bench`) and fio (apt-get install fio). Each row has rounds of fio and
mtrain in turn, and medians of them. fio writes and reads a file of the checkpoint's size (at most 4 GiB), in blocks of 4 MiB,
with as many jobs as mtrain has threads, past the page cache (O_DIRECT); where the file system refuses that, both
sides use the cache. The files leave the page cache before they are read. The last line has the communication of a
save of Qwen3-30B-A3B's shapes, cut to 2 layers and 32 experts, on 8 ranks.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

GIB = 1 << 30
COMMON = ["dataset.train=unused", "train.run_dir=unused", "train.device=cpu", "dataset.seq_length=16",
          "train.micro_batch_size=1", "train.steps=10", "mixed_precision.name=bf16_mixed"]
# Without fp32 masters and with moments in bf16, a training of 1B fits into 16 GiB.
NARROW = ["optimizer.master_weights=false", "optimizer.moments=bf16"]
SHARDED = ["distributed.strategy=fsdp2"]
MODELS = {
    "124M": ["model.architecture=gpt2", "model.num_layers=12", "model.hidden_size=768",
             "model.num_attention_heads=12", "model.vocab_size=50257", "model.max_position_embeddings=1024"],
    "1B": ["model.architecture=llama", "model.num_layers=16", "model.hidden_size=2048",
           "model.num_attention_heads=32", "model.num_query_groups=8", "model.ffn_hidden_size=8192",
           "model.vocab_size=128256", "model.share_embeddings_and_output_weights=true", *NARROW]}
# Qwen3-30B-A3B, cut to 2 layers, to 32 of its 128 experts, and to a small vocabulary: it fits into 8 GiB.
EXPERTS = ["model.architecture=qwen3_moe", "model.num_layers=2", "model.hidden_size=2048",
           "model.num_attention_heads=32", "model.num_query_groups=4", "model.kv_channels=128",
           "model.vocab_size=4096", "model.moe.num_experts=32", "model.moe.router_topk=8",
           "model.moe.ffn_hidden_size=768", "distributed.ep_size=4", *SHARDED, *NARROW]


def run_mtrain(options, folder, ranks, settings):
    """Saves and loads once. Returns the line that bench_checkpoint prints."""
    command = [os.path.join(options.build, "scripts/bench/bench_checkpoint"), folder, str(ranks), "1", *COMMON,
               f"train.global_batch_size={ranks}", f"checkpoint.io_threads={options.io_threads}", *settings]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {result.returncode}")
    return json.loads(result.stdout)


def fio(folder, kind, size, jobs):
    """Returns fio's rate in bytes per second, and whether it wrote past the page cache."""
    part = max(1, size // jobs // (4 << 20)) * (4 << 20)
    for direct in (1, 0):
        command = ["fio", "--name=fio", f"--filename={folder}/fio", f"--rw={kind}", "--bs=4m", f"--direct={direct}",
                   "--ioengine=psync", f"--numjobs={jobs}", f"--size={part * jobs}", f"--io_size={part}",
                   f"--offset_increment={part}", "--end_fsync=1", "--invalidate=1", "--group_reporting",
                   "--output-format=json"]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if result.returncode == 0:
            job = json.loads(result.stdout[result.stdout.index("{"):])["jobs"][0][kind]
            # With the time of the last fsync.
            return job["io_bytes"] / (job["runtime"] / 1000), direct == 1
    sys.exit("fio failed")


def measure(options, name, ranks):
    settings = MODELS[name] + (SHARDED if ranks > 1 else [])
    with tempfile.TemporaryDirectory(prefix="bench_checkpoint.", dir=options.folder) as folder:
        jobs, rows, direct = ranks * options.io_threads, [], True
        for _ in range(options.rounds):
            ours = run_mtrain(options, folder, ranks, settings)
            size = min(ours["bytes"], 4 * GIB)
            write, direct = fio(folder, "write", size, jobs)
            read, direct = fio(folder, "read", size, jobs)
            os.remove(os.path.join(folder, "fio"))
            rows.append((ours["bytes"] / ours["save_s"], write, ours["bytes"] / ours["load_s"], read,
                         ours["peak_bytes"]))
    save, write, load, read, peak = (statistics.median(column) for column in zip(*rows))
    ratios = [statistics.median(r[i] / r[i + 1] for r in rows) for i in (0, 2)]
    print(f"| {name} | {ranks} | {ours['bytes'] / GIB:.2f} | {save / GIB:.2f} | {write / GIB:.2f} | {ratios[0]:.2f} "
          f"| {load / GIB:.2f} | {read / GIB:.2f} | {ratios[1]:.2f} | {peak / ranks / (1 << 20):.0f} "
          f"| {'yes' if direct else 'no'} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--folder", default=".", help="on the disk that is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--models", default="124M,1B")
    parser.add_argument("--io-threads", type=int, default=4)
    parser.add_argument("--no-experts", action="store_true", help="leave out the save of experts on 8 ranks")
    options = parser.parse_args()
    if not shutil.which("fio"):
        sys.exit("fio is missing: apt-get install fio")
    print("| model | ranks | checkpoint, GiB | save, GiB/s | fio, GiB/s | ratio | load, GiB/s | fio, GiB/s | ratio "
          "| memory of a load, MiB per rank | direct |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in filter(None, options.models.split(",")):
        for ranks in map(int, options.ranks.split(",")):
            measure(options, name, ranks)
    if options.no_experts:
        return
    with tempfile.TemporaryDirectory(prefix="bench_checkpoint.", dir=options.folder) as folder:
        saved = run_mtrain(options, folder, 8, EXPERTS)
    print(f"\nQwen3-30B-A3B, 2 layers and 32 experts, 8 ranks: {saved['bytes'] / GIB:.2f} GiB saved in {saved['save_s']:.2f} s; "
          f"communication of rank 0: {json.dumps(saved['communication'])}")


if __name__ == "__main__":
    main()
