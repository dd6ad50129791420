#!/usr/bin/env python
"""Trains tiny models with the built binary and opens what a run leaves behind with other people's tools.

    interop_training.py TENTERHOOK [--only NAME]

For a new model of every kind and for one that transformers made, on a nanoGPT-style `train.bin` that numpy wrote:

    batch    the first batch: what hook_embed saw is what numpy says, and transformers' loss on it is ours, 1e-4
    logits   transformers loads the checkpoint's directory and gives the logits of `tenterhook capture`, 1e-4
    ema      the same for the averaged weights beside it
    board    TensorBoard's reader finds every number of metrics.jsonl, and histograms that count every element
    pandas   metrics.jsonl and the CSV file have the same numbers
    tensors  plain safetensors reads the optimizers, the hooks' tensors and what was captured
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

import families
from checks import Failure, attempt, run
from reference import quiet
from roundtrip import distance, within

CHECKS = ("batch", "logits", "ema", "board", "pandas", "tensors")
VOCAB, BLOCK, BATCH, STEPS = families.VOCAB, 12, 4, 6
TOLERANCE = 1e-4

SIZES = "context = 16\nd_model = 24\nn_heads = 4\nn_layers = 2\nd_mlp = 36"
MODELS = {kind: f'kind = "{kind}"\nvocab = {VOCAB}\n{SIZES}' for kind in ("gpt", "llama", "neox")}
MODELS["from"] = 'from = "made"\ndropout = 0.0'

CONFIG = """
[run]
name = "run"

[model]
{model}

[data.train]
kind = "tokens"
path = "train.bin"
block = {block}
batch = {batch}
shuffle = false

[data.val]
kind = "tokens"
path = "val.bin"
block = {block}
batch = {batch}

[train]
steps = {steps}
validate_every = 3
grad_clip = 1.0

[[optimizer]]
kind = "adamw"
lr = 3e-3

[[hooks]]
kind = "capture"
points = ["hook_embed"]

[[hooks]]
kind = "ema"
decay = 0.5

[[hooks]]
kind = "gradient_monitor"
log_frequency = 2
log_histogram = true

[[hooks]]
kind = "activation_stats"

[[hooks]]
kind = "tensorboard"

[[hooks]]
kind = "csv_log"
"""


@dataclass
class Trained:
    """A run, and the tokens it was trained on."""

    binary: Path
    folder: Path
    tokens: np.ndarray

    @property
    def run(self) -> Path:
        return self.folder / "runs/run"

    def checkpoint(self, step: int) -> Path:
        return self.run / f"checkpoints/step-{step:08}"

    def capture(self, model: Path) -> dict[str, np.ndarray]:
        """What the binary computes for the first batch with this model."""
        ids, out = self.folder / "ids.json", self.folder / "out.safetensors"
        ids.write_text(json.dumps(self.first_batch[0].tolist()))
        run(self.binary, "capture", model, "--tokens-file", ids, "--logits", "--points", "hook_embed", "--out", out)
        return load_file(out)

    @cached_property
    def first_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets as nanoGPT cuts them."""
        starts = [i * BLOCK for i in range(BATCH)]
        x = np.stack([self.tokens[start : start + BLOCK] for start in starts])
        y = np.stack([self.tokens[start + 1 : start + 1 + BLOCK] for start in starts])
        return x.astype(np.int64), y.astype(np.int64)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        # By default pandas rounds the last digits.
        return pd.read_json(self.run / "metrics.jsonl", lines=True, precise_float=True)


def train(name: str, folder: Path, binary: Path) -> Trained:
    """Everything is in `folder`; the binary is started there, so that paths are relative as a user's are."""
    folder.mkdir()
    source = np.random.default_rng(len(name))
    tokens = source.integers(0, VOCAB, 500).astype(np.uint16)
    tokens.tofile(folder / "train.bin")
    source.integers(0, VOCAB, 150).astype(np.uint16).tofile(folder / "val.bin")
    if name == "from":
        families.make("gpt2", folder / "made", 30_000)
    config = CONFIG.format(model=MODELS[name], block=BLOCK, batch=BATCH, steps=STEPS)
    (folder / "run.toml").write_text(config)
    run(binary, "train", "run.toml", "--quiet", cwd=folder)
    return Trained(binary, folder, tokens)


def loaded(folder: Path) -> PreTrainedModel:
    """As a user would, and nothing may be missing, left over or of another shape."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {key: sorted(map(str, names)) for key, names in report.items() if names}
    if wrong:
        raise Failure(f"not loaded whole: {wrong}")
    return model.eval()


def p39_batch(trained: Trained) -> str:
    x, y = map(torch.from_numpy, trained.first_batch)
    model = loaded(trained.checkpoint(0))
    with torch.no_grad():
        loss = cross_entropy(model(x).logits.flatten(0, 1), y.flatten()).item()
    seen = load_file(trained.run / "captures/capture-00000000.safetensors")["step-00000000/hook_embed"]
    rows = model.get_input_embeddings().weight.detach().numpy()[trained.first_batch[0]]
    if not np.array_equal(seen, rows):
        raise Failure("the first batch has other tokens")
    return within(TOLERANCE, abs(trained.metrics["loss"][0] - loss), "the first loss")


def p39_logits(trained: Trained, folder: Path) -> str:
    x = torch.from_numpy(trained.first_batch[0])
    with torch.no_grad():
        theirs = loaded(folder)(x).logits
    ours = {"logits": torch.from_numpy(trained.capture(folder)["logits"])}
    return within(TOLERANCE, distance(ours, "logits", theirs))


def p39_ema(trained: Trained) -> str:
    """Averages that equal the weights would say nothing."""
    weights, averages = (load_file(trained.checkpoint(STEPS) / part / "model.safetensors") for part in ("", "ema"))
    if all(np.array_equal(weights[name], averages[name]) for name in weights):
        raise Failure("the average is the weights")
    return p39_logits(trained, trained.checkpoint(STEPS) / "ema")


def p39_board(trained: Trained) -> str:
    # 0 keeps every event; by default histograms are sampled.
    board = EventAccumulator(str(trained.run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    numbers = trained.metrics.drop(columns=["step", "epoch", "time"])
    if set(board.Tags()["scalars"]) != set(numbers.columns):
        raise Failure(f"other tags: {sorted(set(board.Tags()['scalars']) ^ set(numbers.columns))[:5]}")
    for name in numbers.columns:
        logged = trained.metrics[["step", name]].dropna()
        events = board.Scalars(name)
        # TensorBoard keeps a scalar as f32.
        same = [event.value for event in events] == logged[name].astype(np.float32).tolist()
        if not same or [event.step for event in events] != logged["step"].tolist():
            raise Failure(f"{name} is not what metrics.jsonl has")
    sizes = {name: value.size for name, value in load_file(trained.checkpoint(STEPS) / "model.safetensors").items()}
    for name, size in sizes.items():
        events = board.Histograms(f"grad/{name}")
        counts = [(event.step, event.histogram_value.num, sum(event.histogram_value.bucket)) for event in events]
        if counts != [(step, size, size) for step in range(1, STEPS, 2)]:
            raise Failure(f"the histograms of {name} are {counts}, of {size} elements")
    return f"{len(numbers.columns)}+{len(sizes)}"


def p39_pandas(trained: Trained) -> str:
    metrics = trained.metrics
    table = pd.read_csv(trained.run / "logs/csv_log.csv", float_precision="round_trip")
    if metrics["loss"].count() != STEPS or metrics["val/loss"].count() != 2:
        raise Failure(f"metrics.jsonl has {metrics.count().to_dict()}")
    if not table.equals(metrics[table.columns]):
        raise Failure("the CSV file has other numbers than metrics.jsonl")
    return f"{table.shape[0]}x{table.shape[1]}"


def p39_tensors(trained: Trained) -> str:
    newest = trained.checkpoint(STEPS)
    weights, moments = load_file(newest / "model.safetensors"), load_file(newest / "optimizer.safetensors")
    shapes = sorted(value.shape for value in weights.values() for _ in range(2))
    if sorted(value.shape for value in moments.values()) != shapes:
        raise Failure(f"the moments are {sorted(moments)[:4]}")
    averages = load_file(newest / "hooks.safetensors")
    if not all(np.isfinite(value).all() for value in (moments | averages).values()) or len(averages) < len(weights):
        raise Failure(f"the hooks' tensors are {sorted(averages)[:4]}")
    captured = load_file(trained.run / "captures/capture-00000000.safetensors")
    if len(captured) < STEPS or any(value.shape[:2] != (BATCH, BLOCK) for value in captured.values()):
        raise Failure(f"captured: {[(name, value.shape) for name, value in captured.items()][:4]}")
    return str(len(weights) + len(moments) + len(averages) + len(captured))


def examine(name: str, folder: Path, binary: Path) -> dict[str, str]:
    try:
        trained = train(name, folder, binary)
    except Failure as failure:
        return {check: f"FAIL {failure}" for check in CHECKS}
    return {
        "batch": attempt(lambda: p39_batch(trained)),
        "logits": attempt(lambda: p39_logits(trained, trained.checkpoint(STEPS))),
        "ema": attempt(lambda: p39_ema(trained)),
        "board": attempt(lambda: p39_board(trained)),
        "pandas": attempt(lambda: p39_pandas(trained)),
        "tensors": attempt(lambda: p39_tensors(trained)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tenterhook", type=Path)
    parser.add_argument("--only", metavar="NAME", choices=sorted(MODELS))
    options = parser.parse_args()
    quiet()
    print(f"{'trained':20}" + "".join(f"{check:>10}" for check in CHECKS))
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in [options.only] if options.only else MODELS:
            cells = examine(name, Path(scratch) / name, options.tenterhook.resolve())
            problems = [f"{check}: {cell[5:]}" for check, cell in cells.items() if cell.startswith("FAIL")]
            line = f"{name:20}" + "".join(f"{cells[check].split()[0]:>10}" for check in CHECKS)
            print(line, *problems, sep="\n    ", flush=True)
            failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
