#!/usr/bin/env python
"""Opens a store of `tenterhook capture` with plain safetensors and compares it with transformers and TransformerLens.

    interop_store.py TENTERHOOK [--only NAME]

For fresh random models of several families, on sequences of several lengths that go through the model in padded batches:

    rows     tokens, positions and sequences are those that were given, and no padding is among them
    hidden   the residual stream after every block, row by row, against transformers' hidden states of each sequence alone, 1e-4
    lens     attention patterns, head outputs and normalised values, against TransformerLens, 1e-4
    text     texts through a tokenizer that the `tokenizers` package made: the tokens are those that it gives
    f16      half precision on the disk is what torch makes of the same numbers
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

import families
from checks import Failure, attempt, run
from reference import open_bridge, quiet
from roundtrip import within

CHECKS = ("rows", "hidden", "lens", "text", "f16")
FAMILIES = ("gpt2", "llama", "neox", "qwen3")
LENGTHS = (7, 11, 3, 9, 1, 11, 5)
POINTS = ("blocks.*.hook_resid_post", "blocks.*.attn.hook_z", "blocks.0.ln1.hook_normalized", "blocks.*.attn.hook_pattern")
TOLERANCE = 1e-4


class Store:
    """A run of a store, read with nothing but safetensors."""

    def __init__(self, run_dir: Path):
        self.index = json.loads((run_dir / "index.json").read_text())
        lines = (run_dir / "shards.jsonl").read_text().splitlines()
        self.shards = []
        for line in map(json.loads, lines):
            with safe_open(run_dir / f"shard-{line['shard']:08}.safetensors", "pt") as shard:
                self.shards.append({name: shard.get_tensor(name) for name in shard.keys()})

    def rows(self, name: str) -> Tensor:
        return torch.cat([shard[name] for shard in self.shards])

    def sequence(self, layer: str, number: int) -> Tensor:
        """What is stored for one sequence, whichever way."""
        by_name = f"{layer}#{number}"
        for shard in self.shards:
            if by_name in shard:
                return shard[by_name]
        return self.rows(layer)[self.rows("sequences") == number]


def capture(binary: Path, folder: Path, name: str, *options: str) -> Store:
    points = [word for point in POINTS for word in ("--points", point)]
    run(binary, "capture", folder, "--out", folder / "acts", "--run", name, "--batch-size", "3", *points, *options)
    store = Store(folder / "acts" / name)
    if not store.index["finished"]:
        raise Failure("the run is not finished")
    return store


def check_rows(store: Store, sequences: list[list[int]]) -> str:
    numbers = [number for number, ids in enumerate(sequences) for _ in ids]
    want = {
        "tokens": [token for ids in sequences for token in ids],
        "positions": [position for ids in sequences for position in range(len(ids))],
        "sequences": numbers,
        "lengths": [len(ids) for ids in sequences],
        "batches": [3, 3, 1],
    }
    for name, values in want.items():
        if store.rows(name).tolist() != values:
            raise Failure(f"{name} are others")
    return f"{len(numbers)} rows"


def check_hidden(store: Store, folder: Path, sequences: list[list[int]]) -> str:
    model, worst = families.load(folder), 0.0
    for number, ids in enumerate(sequences):
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        # The last one is behind the final norm.
        for block, state in enumerate(hidden[1:-1]):
            ours = store.sequence(f"blocks.{block}.hook_resid_post", number)
            worst = max(worst, off_by(ours, state[0].detach()))
    return within(TOLERANCE, worst)


def check_lens(store: Store, folder: Path, sequences: list[list[int]]) -> str:
    bridge, worst = open_bridge(folder), 0.0
    for number, ids in enumerate(sequences):
        _, cache = bridge.run_with_cache(torch.tensor([ids]))
        for layer in (layer["name"] for layer in store.index["layers"]):
            theirs = cache[layer][0].detach()
            worst = max(worst, off_by(store.sequence(layer, number), theirs.reshape(store.sequence(layer, number).shape)))
    return within(TOLERANCE, worst)


def off_by(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        raise Failure(f"shape {list(ours.shape)}, not {list(theirs.shape)}")
    return ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max().item()


def check_text(binary: Path, folder: Path) -> str:
    words = ["[UNK]", "the", "tower", "is", "in", "paris", "and", "not", "rome"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = ["the tower is in paris", "and not in rome", "the unknown tower"]
    lines = folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    store = capture(binary, folder, "text", "--file", str(lines))
    if store.rows("tokens").tolist() != [token for text in texts for token in tokenizer.encode(text).ids]:
        raise Failure("other tokens")
    return f"{len(texts)} texts"


def check_f16(binary: Path, folder: Path, whole: Store, tokens: str) -> str:
    half = capture(binary, folder, "f16", "--tokens-file", tokens, "--dtype", "f16")
    for layer in (layer["name"] for layer in whole.index["layers"]):
        for number in range(len(LENGTHS)):
            if not torch.equal(half.sequence(layer, number), whole.sequence(layer, number).to(torch.float16)):
                raise Failure(f"{layer} differs")
    return "equal"


def examine(name: str, folder: Path, binary: Path) -> dict[str, str]:
    families.make(name, folder, seed=11)
    source = families.random_source(name, 5)
    sequences = [torch.randint(0, families.VOCAB, (length,), generator=source).tolist() for length in LENGTHS]
    tokens = folder / "ids.json"
    tokens.write_text(json.dumps(sequences))
    store = capture(binary, folder, "f32", "--tokens-file", str(tokens))
    checks: dict[str, Callable[[], str]] = {
        "rows": lambda: check_rows(store, sequences),
        "hidden": lambda: check_hidden(store, folder, sequences),
        "lens": lambda: check_lens(store, folder, sequences),
        "text": lambda: check_text(binary, folder),
        "f16": lambda: check_f16(binary, folder, store, str(tokens)),
    }
    return {check: attempt(checks[check]) for check in CHECKS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--only", choices=FAMILIES)
    args = parser.parse_args()
    quiet()
    print("store".ljust(10), *(check.ljust(12) for check in CHECKS))
    failed = False
    for name in [args.only] if args.only else FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            results = examine(name, Path(scratch), args.binary.resolve())
        failed |= any(result.startswith("FAIL") for result in results.values())
        print(name.ljust(10), *(results[check].ljust(12) for check in CHECKS))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
