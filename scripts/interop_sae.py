#!/usr/bin/env python
"""Holds the built programs against a live SAELens, in both directions, on autoencoders nobody has seen before.

    interop_sae.py TENTERHOOK ROUNDTRIP_SAE [--seed N]

TENTERHOOK is the binary, ROUNDTRIP_SAE the example of `tenterhook-sae`.

    read      what SAELens writes gives the same latents and reconstructions here, 1e-5
    write     what was read and written again gives SAELens the same, 1e-5
    train     SAELens loads what `sae train` makes of a tiny model, for every architecture, and computes the same, 1e-5
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
from safetensors.torch import load_file, save_file
from sae_lens import SAE
from sae_lens.saes.sae import SAEMetadata
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

from reference_sae import SAVED, randomize

TOLERANCE = 1e-5
TRAINED = {
    "standard": [],
    "topk": ["--k", "4"],
    "batchtopk": ["--k", "2.5", "--normalize", "expected_average_only_in"],
    "jumprelu": ["--l0", "0.1", "--normalize", "layer_norm"],
    "gated": ["--l1", "0.1"],
}
POINTS = ["blocks.1.hook_resid_post", "blocks.0.attn.hook_z"]


class Failure(Exception):
    """A check that did not hold."""


def run(*command) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")


def compare(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    difference = float((got - want).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(want.abs().max())):
        raise Failure(f"{what} differs by {difference}")


def both_ways(roundtrip: Path, folder: Path, shape: tuple[int, ...], seed: int) -> None:
    """SAELens' numbers on a directory, ours, and SAELens' on what we wrote again."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    save_file(dict(input=x), folder / "input.safetensors")
    run(roundtrip, folder, folder / "input.safetensors", folder / "output.safetensors", folder / "again")
    ours = load_file(folder / "output.safetensors")
    for where in (folder, folder / "again"):
        sae = SAE.load_from_disk(where)
        with torch.no_grad():
            acts = sae.encode(x)
            recons = sae.decode(acts)
        compare(f"latents ({where.name})", ours["acts"], acts)
        compare(f"reconstruction ({where.name})", ours["recons"], recons)


def saved(roundtrip: Path, folder: Path, name: str, seed: int) -> None:
    kind, config, options, hook_name = SAVED[name]
    options = {**options, "k": 7} if "k" in options else options
    sae = kind(config(d_in=12, d_sae=40, metadata=SAEMetadata(hook_name=hook_name), **options))
    randomize(sae, seed)
    if name == "batchtopk":
        sae.topk_threshold.fill_(0.3)
        sae.save_inference_model(folder)
    else:
        sae.save_model(folder)
    both_ways(roundtrip, folder, (3, 5, 3, 4) if "hook_z" in name else (3, 5, 12), seed)


def tiny_model(folder: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=32, n_embd=16, n_layer=2, n_head=2))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({chr(97 + i): i for i in range(26)} | {"?": 26}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(0, 26, (60, 24), generator=generator)
    (folder / "texts.txt").write_text("\n".join("".join(chr(97 + c) for c in row) for row in texts.tolist()))


def trained(binary: Path, roundtrip: Path, model: Path, folder: Path, name: str, seed: int) -> None:
    points = [word for point in POINTS for word in ("--points", point)]
    options = ["--expansion", 4, "--batch", 64, "--steps", 30, "--context", 24, "--lr", 1e-2, "--quiet", *TRAINED[name]]
    run(binary, "sae", "train", model, *points, "--file", model / "texts.txt", "--arch", name, "--out", folder, *options)
    for point, shape in zip(POINTS, [(20, 16), (20, 2, 8)], strict=True):
        saes = folder / "saes" / point
        both_ways(roundtrip, saes, shape, seed)
        metadata = json.loads((saes / "cfg.json").read_text())["metadata"]
        if metadata["hook_name"] != point or metadata["training_architecture"] != name:
            raise Failure(f"the metadata of {point} says {metadata}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tenterhook", type=Path)
    parser.add_argument("roundtrip_sae", type=Path)
    parser.add_argument("--seed", type=int, default=1234)
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tiny_model(folder / "model")
        checks = {f"read, write: {name}": (saved, options.roundtrip_sae, folder / name, name) for name in SAVED}
        checks |= {
            f"train: {name}": (trained, options.tenterhook, options.roundtrip_sae, folder / "model", folder / f"run_{name}", name)
            for name in TRAINED
        }
        for seed, (what, (check, *arguments)) in enumerate(checks.items()):
            try:
                check(*arguments, options.seed + seed)
                print(f"ok      {what}")
            except Failure as failure:
                print(f"FAILED  {what}: {failure}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
