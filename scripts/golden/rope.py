#!/usr/bin/env python3
"""Writes the rotary positions that transformers computes: test/golden/rope.json.

  scripts/golden/rope.py            writes the file
  scripts/golden/rope.py --check    recomputes its numbers, writes nothing

needs PyTorch and transformers; the file is written by the versions that scripts/golden/requirements.txt names.

Each case has a configuration, the length of the sequence, and the frequencies (fp32, in radians per position) and the
attention factor of transformers' own functions. It also has the cosines and sines at some positions, computed in
float64 from these frequencies.
"""
import argparse
import json
import pathlib
import sys

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from golden_numbers import differences

FILE = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "rope.json"
POSITIONS = [0, 1, 5, 63]
# What is compared of a case. Frequencies are fp32, so an angle at the last position has an error of 63 * 2^-24 of its size.
NUMBERS = ("length", "frequencies", "attention_factor", "cos", "sin")
TOLERANCE = 1e-5


def llama(head_dim, longest, theta, kind, **more):
    return transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        head_dim=head_dim, max_position_embeddings=longest,
        rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


def yarn(head_dim, theta, factor, original, **more):
    return llama(head_dim, int(factor * original), theta, "yarn", factor=factor,
                 original_max_position_embeddings=original, **more)


def phi3(original, **more):
    return transformers.Phi3Config(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=4096, original_max_position_embeddings=original,
        rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                             short_factor=[1 + 0.25 * i for i in range(12)],
                             long_factor=[1 + 2.5 * i for i in range(12)], **more))


# case: (configuration, length of the sequence)
CASES = {
    "linear": (llama(16, 64, 1e4, "linear", factor=2.5), 64),
    "llama3": (llama(64, 131072, 5e5, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                     original_max_position_embeddings=8192), 64),
    "yarn": (yarn(128, 1e6, 4.0, 32768), 64),
    "yarn_not_truncated": (yarn(128, 1e6, 4.0, 32768, truncate=False), 64),
    "yarn_betas": (yarn(64, 1e4, 16.0, 512, beta_fast=8.0, beta_slow=2.5), 64),
    "yarn_attention_factor": (yarn(64, 1e4, 40.0, 4096, attention_factor=1.25), 64),
    "yarn_mscale": (yarn(64, 1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=0.7), 64),
    "yarn_one_mscale": (yarn(64, 1e4, 40.0, 4096, mscale=0.7), 64),
    # Both ends of the ramp are lane 0, or it begins after the last lane.
    "yarn_step": (yarn(32, 1e4, 8.0, 4), 64),
    "yarn_behind_last_lane": (yarn(32, 10.0, 8.0, 1 << 20), 64),
    "yarn_same_length": (yarn(32, 1e4, 1.0, 256), 64),
    "longrope": (phi3(64), 64),
    "longrope_long": (phi3(63), 64),
    "longrope_same_length": (phi3(4096), 64),
    "longrope_attention_factor": (phi3(64, attention_factor=1.5), 64),
}


def computed(config, length):
    rope = config.rope_parameters
    inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
    angles = torch.tensor(POSITIONS, dtype=torch.float64)[:, None] * inverse.double()
    return dict(config=config.to_diff_dict(), length=length, frequencies=inverse.double().tolist(),
                attention_factor=float(factor), cos=(angles.cos() * factor).tolist(),
                sin=(angles.sin() * factor).tolist())


def numbers(golden):
    """The numbers of the file. Other versions of transformers write other keys into a configuration, which are inputs."""
    return {"positions": golden["positions"],
            "cases": {name: {key: case[key] for key in NUMBERS} for name, case in golden["cases"].items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="recompute the file, write nothing")
    check = parser.parse_args().check
    transformers.utils.logging.set_verbosity_error()
    cases = {name: computed(*case) for name, case in CASES.items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    text = f'{{"positions": {json.dumps(POSITIONS)}, "cases": {{\n{lines}\n}}}}\n'
    if not check:
        FILE.write_text(text)
        print(f"{FILE.name}: {len(cases)} cases, {len(text) / 1024:.0f} KiB")
        return 0
    wrong = differences(numbers(json.loads(FILE.read_text())), numbers(json.loads(text)), TOLERANCE)
    print(f"{FILE.name}: {len(cases)} cases {'WRONG' if wrong else 'ok'}", *wrong[:10], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
