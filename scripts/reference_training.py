#!/usr/bin/env python
"""Makes the training runs that the tests of `tenterhook` compare with: 50 steps of a tiny GPT-2 in PyTorch.

For every run of `RUNS`, `training_<name>.json` has the settings and, for every step, the learning rate, the loss and
the norm of all gradients before clipping; and for every parameter at the end its sum, its norm, `samples` of it and,
where it has fewer than 512 elements, all of its values in row-major order.

The batch of step `s` has `ids[i] = (7 i^2 + 13 i + 31 s) % vocab`, with `i` over its tokens in row-major order. The
loss is the mean over all next tokens. There is no dropout; everything is f32 on one thread. Sample `k` of `n`
elements is number `k (n - 1) // 7`.

The key biases of attention do not change the loss: their gradient is rounding, and Adam divides rounding by
rounding. `undetermined: [start, end]` says where they are; these elements are null, and count in neither sum nor norm.

The learning rate is `lr` times the factor of step `s`, which counts from 0. With `w = warmup`, `T = steps`,
`r = min_lr_ratio` and `t = min(1, (s - w) / (T - w))`:

    s < w     (s + 1) / w
    linear    r + (1 - r) (1 - t)
    cosine    r + (1 - r) (1 + cos(pi t)) / 2

    reference_training.py            write the runs
    reference_training.py --check    make them again and compare with the committed ones
"""

import argparse
import json
import math
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

ROOT = Path(__file__).resolve().parent.parent
MODEL = "crates/models/tests/data/gpt2"
DATA = ROOT / "crates/tenterhook/tests/data"
STEPS, BATCH, TOKENS = 50, 4, 16
SAMPLES, SMALL = 8, 512
# Another build of torch may round otherwise, and fifty steps carry that on.
TOLERANCE = 1e-4

RUNS = {
    "adamw": dict(
        optimizer=dict(kind="adamw", lr=3e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
        clip_norm=1.0,
        schedule=dict(kind="cosine", warmup=5, steps=STEPS, min_lr_ratio=0.1),
    ),
    "sgd": dict(
        optimizer=dict(kind="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        clip_norm=0.5,
        schedule=dict(kind="linear", warmup=0, steps=STEPS, min_lr_ratio=0.0),
    ),
}


def factor(schedule: dict, step: int) -> float:
    """What the learning rate is multiplied with."""
    warmup, ratio = schedule["warmup"], schedule["min_lr_ratio"]
    if step < warmup:
        return (step + 1) / warmup
    t = min(1.0, (step - warmup) / (schedule["steps"] - warmup))
    height = 1 - t if schedule["kind"] == "linear" else (1 + math.cos(math.pi * t)) / 2
    return ratio + (1 - ratio) * height


def batch(step: int, vocab: int) -> Tensor:
    i = torch.arange(BATCH * TOKENS)
    return ((7 * i * i + 13 * i + 31 * step) % vocab).view(BATCH, TOKENS)


def make_optimizer(model: PreTrainedModel, settings: dict) -> torch.optim.Optimizer:
    """Norms and biases, which have one axis, do not decay."""
    parameters = list(model.parameters())
    groups = [
        dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=settings["weight_decay"]),
        dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0),
    ]
    if settings["kind"] == "adamw":
        return torch.optim.AdamW(groups, lr=settings["lr"], betas=settings["betas"], eps=settings["eps"])
    return torch.optim.SGD(groups, lr=settings["lr"], momentum=settings["momentum"], nesterov=settings["nesterov"])


def summary(name: str, weight: Tensor) -> dict:
    values = weight.detach().flatten()
    count, found = values.numel(), dict(shape=list(weight.shape))
    numbers = values.tolist()
    if name.endswith("attn.c_attn.bias"):
        start, end = count // 3, 2 * count // 3
        found["undetermined"] = [start, end]
        numbers[start:end] = [None] * (end - start)
    known = torch.tensor([x for x in numbers if x is not None], dtype=torch.float64)
    found["sum"], found["norm"] = known.sum().item(), known.norm().item()
    found["samples"] = [numbers[k * (count - 1) // (SAMPLES - 1)] for k in range(SAMPLES)]
    return found | (dict(values=numbers) if count < SMALL else {})


def train(settings: dict) -> dict:
    off = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    model = AutoModelForCausalLM.from_pretrained(ROOT / MODEL, dtype=torch.float32, attn_implementation="eager", **off)
    model.train()
    optimizer = make_optimizer(model, settings["optimizer"])
    rates, losses, norms = [], [], []
    for step in range(STEPS):
        rate = settings["optimizer"]["lr"] * factor(settings["schedule"], step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = batch(step, model.config.vocab_size)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimizer.step()
        rates.append(rate)
        losses.append(loss.item())
        norms.append(norm.item())
    clipped = sum(norm > settings["clip_norm"] for norm in norms)
    assert STEPS / 4 < clipped, f"only {clipped} of {STEPS} steps are clipped: the run says little about clipping"
    setup = dict(model=MODEL, batch=BATCH, tokens=TOKENS, steps=STEPS, torch=str(torch.__version__))
    weights = {name: summary(name, weight) for name, weight in model.named_parameters()}
    return setup | settings | dict(lr=rates, loss=losses, grad_norm=norms, weights=weights)


def differences(was, now, where: str) -> list[str]:
    """Places where two runs are not the same, up to rounding; versions may differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = [f"{where}.{key}: only in one of the two" for key in sorted(was.keys() ^ now.keys())]
        for key in sorted((was.keys() & now.keys()) - {"torch"}):
            found += differences(was[key], now[key], f"{where}.{key}")
        return found
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [line for i, pair in enumerate(zip(was, now)) for line in differences(*pair, f"{where}[{i}]")]
    if isinstance(was, float) and isinstance(now, float):
        same = math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    else:
        same = was == now
    return [] if same else [f"{where}: {was} is now {now}"]


def text(run: dict) -> str:
    """One line per list and per parameter: small, and a change shows where it is."""
    weights = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in run["weights"].items())
    rest = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items() if key != "weights"]
    return "{\n" + ",\n".join(rest) + ',\n  "weights": {\n' + weights + "\n  }\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    for name, settings in RUNS.items():
        path, run = DATA / f"training_{name}.json", train(settings)
        if options.check:
            was = json.loads(path.read_text()) if path.exists() else {}
            found = differences(was, run, name)
            print(f"training {name:11} {'same' if not found else '; '.join(found[:5])}", flush=True)
            failed |= bool(found)
        else:
            DATA.mkdir(parents=True, exist_ok=True)
            path.write_text(text(run))
            ends = f"loss {run['loss'][0]:.3f} to {run['loss'][-1]:.3f}"
            print(f"training {name:11} {path.stat().st_size / 1024:6.0f} KiB, {ends}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
