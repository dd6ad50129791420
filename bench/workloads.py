"""Every workload: our command, the peers, and how their outputs are compared."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file

import inputs
from inputs import STEERED_BLOCK, Training


@dataclass
class Workload:
    """`ours` are the arguments of `tenterhook bench`. Of several peers of one family the fastest is taken."""

    name: str
    ours: list
    kind: str
    options: dict
    # family -> names in peer.py
    peers: dict[str, list[str]]
    repeat: int
    warmup: int = 2
    # (our JSON, the peer's output, the folder) -> what is the same, and whether all is well
    agree: Callable[[dict, dict, Path], tuple[str, bool]] = lambda ours, peer, folder: ("", True)
    # how much of the machine's matrix products it may be compared with: arguments of `bench matmul`
    products: list = field(default_factory=list)
    # rounds of `bench forward --overhead`, where the cost of capturing is of interest
    overhead_repeat: int = 0


TRANSFORMERS = {"transformers": ["transformers", "transformers eager"]}
LENS = {"TransformerLens": ["TransformerLens"]}
NNSIGHT = {"nnsight": ["nnsight"]}
PYTORCH = {"PyTorch": ["PyTorch", "PyTorch, eager attention"], "torch.compile": ["torch.compile"], "Lightning": ["Lightning"]}


def same_logits(ours: dict, peer: dict, folder: Path) -> tuple[str, bool]:
    a, b = (load_file(folder / f"{side}.safetensors")["logits"] for side in ("ours", "peer"))
    distance = (a - b).abs().max().item()
    text = f"logits within {distance:.0e}"
    well = distance < 1e-3
    if ours["points"]:
        text += f"; {ours['points']} values, {ours['bytes'] / 1e6:.0f} MB"
        if (ours["points"], ours["bytes"]) != (peer["points"], peer["bytes"]):
            text, well = f"{text} and {peer['points']} values, {peer['bytes'] / 1e6:.0f} MB", False
    return text, well


def same_tokens(ours: dict, peer: dict, _folder: Path) -> tuple[str, bool]:
    pairs = list(zip(ours["new_tokens"], peer["new_tokens"]))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if same == len(pairs):
        return f"the same {same} tokens", True
    return f"the same first {same} of {len(pairs)} tokens", False


def same_losses(ours: dict, peer: dict, _folder: Path) -> tuple[str, bool]:
    pairs = list(zip(ours["losses"], peer["losses"]))[:3]
    distance = max(abs(a - b) / abs(b) for a, b in pairs)
    text = f"first {len(pairs)} losses within {distance:.0e}; {ours['tensors_with_gradient']} gradients"
    return text, distance < 1e-3 and all(math.isfinite(a) for a, _ in pairs)


def forward(model: Path, batch: int, seq: int, task: str, steering: Path, block: int, repeat: int) -> Workload:
    folder = steering.parent
    ours = ["forward", model, "--batch", batch, "--seq", seq]
    peers = dict(TRANSFORMERS)
    if task == "residual":
        ours += ["--points", "blocks.*.hook_resid_post"]
        peers |= LENS | NNSIGHT
    if task == "all":
        ours += [word for point in inputs.CLASSIC_POINTS for word in ("--points", point)]
        peers = dict(LENS)
    if task == "steer":
        ours += ["--hooks", steering]
        peers |= LENS | NNSIGHT
    names = dict(none="no hooks", residual="residual streams", all="all points", steer="steering")
    options = dict(model=str(model), batch=batch, seq=seq, task=task, block=block, logits=str(folder / "peer.safetensors"))
    return Workload(
        f"forward {batch}x{seq}, {names[task]}",
        ours,
        "forward",
        options,
        peers,
        repeat,
        agree=same_logits,
        warmup=1 if repeat == 1 else 2,
        products=["--model", model, "--batch", batch, "--seq", seq] if task == "none" else [],
        # A percent is less than two forwards differ by: many of them.
        overhead_repeat={9: 61, 7: 41, 3: 11}.get(repeat, 5) if task == "residual" else 0,
    )


def generate(model: Path, task: str, steering: Path, block: int, new: int) -> Workload:
    ours = ["generate", model, "--prompt-tokens", 32, "--new-tokens", new]
    ours += ["--hooks", steering] if task == "steer" else []
    options = dict(model=str(model), prompt=32, new=new, task=task, block=block)
    name = f"generate {new} tokens, " + ("steering" if task == "steer" else "no hooks")
    return Workload(name, ours, "generate", options, dict(TRANSFORMERS), 3, 1, same_tokens)


def train(run: Training, config: Path, model: Path, hooks: bool, repeat: int) -> Workload:
    sizes = vars(run.sizes)
    options = dict(model=str(model), tokens=str(config.with_suffix(".bin")), run=vars(run) | {"sizes": sizes}, hooks=hooks)
    return Workload(
        f"training step {run.name} {run.batch}x{run.seq}, " + ("monitors and log" if hooks else "bare"),
        ["train", config] + ([] if hooks else ["--bare"]),
        "train",
        options,
        dict(PYTORCH),
        repeat,
        agree=same_losses,
        products=[] if hooks else ["--config", config, "--training"],
    )


def sae(folder: Path, d_in: int, d_sae: int, batch: int, repeat: int) -> Workload:
    start = folder / "sae"
    sizes = ["--d-in", d_in, "--d-sae", d_sae, "--k", 32, "--batch", batch]
    options = dict(d_in=d_in, d_sae=d_sae, k=32, batch=batch, start=str(start))
    peers = {"PyTorch": ["PyTorch", "PyTorch, embedding_bag"]}
    name = f"autoencoder step {d_in} to {d_sae}, {batch} activations"
    return Workload(name, ["sae", *sizes, "--save-start", start], "sae", options, peers, repeat, agree=same_losses)


def capture(model: Path, folder: Path, sequences: int, seq: int) -> Workload:
    ours = ["capture", model, "--points", "blocks.*.hook_resid_post", "--sequences", sequences, "--seq", seq]
    options = dict(model=str(model), sequences=sequences, seq=seq, batch=8, folder=str(folder / "captured"))

    def told(ours: dict, peer: dict, _folder: Path) -> tuple[str, bool]:
        speeds = f"{ours['mb_per_s']:.0f} MB/s, the disk alone {ours['disk_mb_per_s']:.0f} MB/s, the model alone {ours['model_ms']:.0f} ms"
        return f"{ours['bytes'] / 1e6:.0f} and {peer['bytes'] / 1e6:.0f} MB; {speeds}", True

    name = f"capture to disk, {sequences} sequences of {seq}"
    return Workload(name, ours, "capture", options, {"transformers + safetensors": ["transformers"]}, 1, 1, told)


def all_of(folder: Path, models: Path, quick: bool, tiny: bool) -> list[Workload]:
    """Everything, in the order of the table. `tiny` is for trying the benchmark itself."""
    sizes = inputs.TINY if tiny else inputs.GPT2_SMALL
    model = inputs.make_model(models / ("tiny" if tiny else "gpt2-small"), sizes)
    block = min(STEERED_BLOCK, sizes.layers - 1)
    steering = inputs.write_steering(folder, sizes.width, block)
    shapes = [(1, 32, 9), (1, 128, 7), (4, 256, 3), (8, 512, 1)]
    if quick:
        shapes = shapes[1:3]
    tasks = ("none", "residual", "all", "steer")
    found = [forward(model, b, s, task, steering, block, n) for b, s, n in shapes for task in tasks]
    found += [generate(model, task, steering, block, 64) for task in ("none", "steer")]
    runs = [inputs.TINY_STEP] if tiny else [inputs.D384_STEP, inputs.GPT2_STEP]
    for run in runs:
        trained = inputs.make_model(models / run.name, run.sizes)
        config = run.write(folder, trained, steps=64)
        found += [train(run, config, trained, hooks, 3) for hooks in (False, True)]
    found.append(sae(folder, 64, 512, 128, 3) if tiny else sae(folder, 768, 16384, 4096, 3))
    found.append(capture(model, folder, 16 if tiny else 64, 32 if tiny else 128))
    return found
