#!/usr/bin/env python
"""Holds the built programs against a live transformers, on models nobody has seen before.

    roundtrip.py TENTERHOOK SAVE_PRETRAINED [--only NAME] [--seed N]

TENTERHOOK is the binary, SAVE_PRETRAINED the example of that name of `tenterhook-models`. Per family, on a
fresh random model:

    logits   what `capture --logits` writes, against transformers, 5e-5
    loss     the mean next-token cross entropy, 5e-5
    grads    the loss gradient at every block's output, 1e-4 of its largest entry
    layers   the output of every layer under its Hugging Face path, 5e-5
    reload   transformers' logits on the directory that we loaded and wrote back, 1e-5
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import families
from checks import Failure, attempt, run
from reference import block_outputs, quiet

CHECKS = ("logits", "loss", "grads", "layers", "reload")
BRANCHES = ("attn", "attention", "self_attn", "mlp")


@dataclass
class Live:
    """What transformers computes for one model and one batch."""

    logits: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]
    layers: dict[str, Tensor]


@dataclass
class Case:
    """One fresh model on disk, its tokens, and the programs to hold it against."""

    folder: Path
    ids: Tensor
    binary: Path
    saver: Path

    def capture(self, *options: str) -> dict[str, Tensor]:
        tokens, out = self.folder / "ids.json", self.folder / "out.safetensors"
        tokens.write_text(json.dumps(self.ids.tolist()))
        run(self.binary, "capture", self.folder, "--tokens-file", tokens, "--out", out, *options)
        return load_file(out)


def first(output) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def watched_layers(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Blocks, their two branches, and every module with weights of its own, by their path on disk."""
    neox = model.config.model_type == "gpt_neox"
    blocks = block_outputs(model)
    branches = {m for block in blocks for name, m in block.named_children() if name in BRANCHES} | set(blocks)
    return {
        "embed_out" if neox and path == "lm_head" else path: module
        for path, module in model.named_modules()
        if module in branches or any(True for _ in module.parameters(recurse=False))
    }


def run_live(folder: Path, ids: Tensor) -> Live:
    model, layers = families.load(folder), {}

    def keep(path: str):
        def hook(_module, _inputs, output):
            layers[path] = first(output)
            layers[path].retain_grad()

        return hook

    watched = watched_layers(model)
    for path, module in watched.items():
        module.register_forward_hook(keep(path))
    out = model(ids, labels=ids)
    out.loss.backward()
    blocks = block_outputs(model)
    at = {path: blocks.index(module) for path, module in watched.items() if module in blocks}
    gradients = {f"blocks.{i}.hook_resid_post": layers[path].grad for path, i in at.items()}
    # transformers looks learned positions up once for the whole batch.
    values = {path: value.detach().expand(len(ids), *value.shape[1:]) for path, value in layers.items()}
    return Live(out.logits.detach(), out.loss.detach(), gradients, values)


def distance(ours: dict[str, Tensor], name: str, theirs: Tensor) -> float:
    """The largest difference, absolute for small entries and relative for large ones."""
    if name not in ours:
        raise Failure(f"{name} is missing")
    if ours[name].shape != theirs.shape:
        raise Failure(f"{name} has shape {list(ours[name].shape)}, not {list(theirs.shape)}")
    return ((ours[name] - theirs).abs() / theirs.abs().clamp(min=1.0)).max().item()


def within(limit: float, error: float, name: str = "") -> str:
    if not error <= limit:  # also when it is not a number
        raise Failure(f"{name} off by {error:.1e}".strip())
    return f"{error:.1e}"


def check_capture(case: Case, live: Live) -> dict[str, str]:
    """Logits, loss and gradients from one run of the binary."""
    try:
        ours = case.capture("--points", "blocks.*.hook_resid_post", "--logits", "--gradients")
    except Failure as failure:
        return {check: f"FAIL {failure}" for check in ("logits", "loss", "grads")}

    def gradients() -> str:
        worst = 0.0
        for name, gradient in live.gradients.items():
            scale = gradient.abs().max().item()
            scaled = {name: ours[f"grad.{name}"] / scale} if f"grad.{name}" in ours else {}
            error = distance(scaled, name, gradient / scale)
            within(1e-4, error, name)
            worst = max(worst, error)
        return f"{worst:.1e}"

    return {
        "logits": attempt(lambda: within(5e-5, distance(ours, "logits", live.logits))),
        "loss": attempt(lambda: within(5e-5, distance({"loss": ours["loss"].reshape(())}, "loss", live.loss))),
        "grads": attempt(gradients),
    }


def check_layers(case: Case, live: Live) -> str:
    """Every layer's output is a point under the layer's own path."""
    options = [word for path in live.layers for word in ("--points", f"{path}.hook_out")]
    ours, worst = case.capture(*options), 0.0
    for path, value in live.layers.items():
        error = distance(ours, f"{path}.hook_out", value)
        within(5e-5, error, path)
        worst = max(worst, error)
    return f"{worst:.1e}"


def check_reload(case: Case, live: Live) -> str:
    """A directory that we wrote loads in transformers, whole, and computes the same."""
    written = case.folder.with_name(case.folder.name + "-written")
    run(case.saver, case.folder, written)
    model, report = AutoModelForCausalLM.from_pretrained(
        written, attn_implementation="eager", output_loading_info=True
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise Failure(f"not loaded: {sorted(report['missing_keys'])[:3]} {report['mismatched_keys']}")
    with torch.no_grad():
        logits = model.eval()(case.ids).logits
    return within(1e-5, distance({"logits": logits}, "logits", live.logits))


def examine(name: str, scratch: Path, binary: Path, saver: Path, seed: int) -> dict[str, str]:
    folder = scratch / name
    case = Case(folder, families.make(name, folder, seed), binary, saver)
    live = run_live(folder, case.ids)
    cells = check_capture(case, live)
    cells["layers"] = attempt(lambda: check_layers(case, live))
    cells["reload"] = attempt(lambda: check_reload(case, live))
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tenterhook", type=Path)
    parser.add_argument("save_pretrained", type=Path)
    parser.add_argument("--only", metavar="NAME", choices=sorted(families.FAMILIES))
    parser.add_argument("--seed", type=int, default=20_000, help="of the fresh models; 0 gives the committed ones")
    options = parser.parse_args()
    quiet()
    print(f"{'family':20}" + "".join(f"{check:>10}" for check in CHECKS))
    passed = failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in [options.only] if options.only else families.FAMILIES:
            cells = examine(name, Path(scratch), options.tenterhook, options.save_pretrained, options.seed)
            problems = [f"{check}: {cell[5:]}" for check, cell in cells.items() if cell.startswith("FAIL")]
            line = f"{name:20}" + "".join(f"{cells[check].split()[0]:>10}" for check in CHECKS)
            print(line, *problems, sep="\n    ", flush=True)
            passed, failed = passed + (not problems), failed + bool(problems)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
