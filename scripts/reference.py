#!/usr/bin/env python
"""Makes the reference numbers that the tests of `tenterhook-models` compare with.

For every family: a tiny model directory, and beside it `reference.safetensors` with what transformers,
TransformerLens and plain PyTorch say about one batch of tokens:

    input_ids, logits, loss, hidden.<i>
    point.<name>               the value at a point
    grad.<name>                the gradient of the loss there
    param_grad.<name>          the gradient of every parameter, under its name in the weight file
    edited_param_grad.<name>   the same when a tensor hook at block 0's output turns g into 0.5 g + 0.01;
                               parameters that are not here keep the gradient they had

The three accounts must agree before anything is written. `origin.json` says which points are
TransformerLens' own numbers and which it does not have.

    reference.py                 write all of them
    reference.py --only NAME     write one
    reference.py --check         make them again elsewhere and compare with the committed ones
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

# Everything is local: a look-up on the network would only be slow.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import PreTrainedModel

import families
from plain_torch import Trace

DATA = Path(__file__).resolve().parent.parent / "crates/models/tests/data"
TOLERANCE = 1e-5

# What is kept where the family is only a variant of another one.
SLIM_POINTS = ("hook_resid_post", "hook_rot_q", "hook_rot_k", "hook_pattern")
# Where gradients are kept: one of every kind of place a gradient hook can stand.
GRADIENTS = (
    "hook_embed hook_resid_mid hook_resid_post hook_attn_out hook_mlp_in hook_mlp_out ln1.hook_normalized "
    "ln1.hook_scale hook_q hook_k hook_v hook_attn_scores hook_pattern hook_z mlp.hook_post"
).split()
# One model with and one without grouped heads say all there is about the per-branch inputs.
SPLIT_INPUTS = ("gpt2", "llama")

Tensors = dict[str, Tensor]


def require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def agree(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    """Equal up to rounding, measured against the largest entry; infinities must match exactly."""
    if ours.shape != theirs.shape:
        return False
    finite = theirs[theirs.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 0.0
    # The floor is for gradients that are zero but for rounding, such as that of GPT-2's key bias.
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * max(largest, 0.01))


def block_outputs(model: PreTrainedModel) -> list[torch.nn.Module]:
    trunk = model.base_model
    return list(trunk.h if hasattr(trunk, "h") else trunk.layers)


def parameter_gradients(model: PreTrainedModel) -> Tensors:
    """By the names of the weight file: transformers calls GPT-NeoX's head `lm_head`, the file `embed_out`."""
    neox = model.config.model_type == "gpt_neox"
    on_disk = {"lm_head.weight": "embed_out.weight"} if neox else {}
    return {on_disk.get(name, name): p.grad.clone() for name, p in model.named_parameters()}


def run_transformers(folder: Path, ids: Tensor) -> Tensors:
    """Logits, loss, hidden states, all parameter gradients and those of the block outputs."""
    model, outputs = families.load(folder), {}

    def keep(name: str):
        def hook(_module, _inputs, output):
            outputs[name] = output[0] if isinstance(output, tuple) else output
            outputs[name].retain_grad()

        return hook

    for i, block in enumerate(block_outputs(model)):
        block.register_forward_hook(keep(f"grad.blocks.{i}.hook_resid_post"))
    out = model(ids, labels=ids, output_hidden_states=True)
    out.loss.backward()
    return (
        {"logits": out.logits, "loss": out.loss}
        | {f"hidden.{i}": state for i, state in enumerate(out.hidden_states)}
        | {name: output.grad for name, output in outputs.items()}
        | {f"param_grad.{name}": grad for name, grad in parameter_gradients(model).items()}
    )


def run_edited(folder: Path, ids: Tensor, unedited: Tensors) -> Tensors:
    """The parameter gradients that change when the gradient at block 0's output is edited on its way down."""
    model = families.load(folder)

    def edit(_module, _inputs, output):
        output = output[0] if isinstance(output, tuple) else output
        output.register_hook(lambda grad: 0.5 * grad + 0.01)

    block_outputs(model)[0].register_forward_hook(edit)
    model(ids, labels=ids).loss.backward()
    return {
        f"edited_param_grad.{name}": grad
        for name, grad in parameter_gradients(model).items()
        if not torch.equal(grad, unedited[f"param_grad.{name}"])
    }


def open_bridge(folder: Path):
    """TransformerLens around a model of its own, since the bridge takes its modules over."""
    model = families.load(folder)
    bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config, dtype=torch.float32)
    bridge.set_use_hook_mlp_in(True)
    return bridge


def run_lens(folder: Path, ids: Tensor) -> Tensors:
    """Every point TransformerLens has. It masks with the lowest float; a masked score is -inf here."""
    bridge = open_bridge(folder)
    bridge.set_use_attn_result(True)
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids)
    lowest = torch.finfo(torch.float32).min
    return {
        name: value.masked_fill(value == lowest, -torch.inf) if name.endswith("attn_scores") else value
        for name, value in cache.items()
    }


def run_lens_backward(folder: Path, ids: Tensor, names: list[str], split=None) -> tuple[Tensors, Tensors]:
    """Values and loss gradients at `names`, both as TransformerLens' hooks see them."""
    bridge, values, gradients = open_bridge(folder), {}, {}
    if split:
        getattr(bridge, split)(True)
    for name in names:
        bridge.add_hook(name, lambda x, hook, name=name: values.update({name: x.detach().clone()}))
        bridge.add_hook(name, lambda g, hook, name=name: gradients.update({name: g.clone()}), dir="bwd")
    bridge(ids, return_type="loss").backward()
    return values, gradients


def split_inputs(folder: Path, ids: Tensor, block: int, stream: Tensor) -> Tensors:
    """What the query, key, value and attention branches of a block read: the stream, once per (kv) head."""
    found: Tensors = {}
    for setting, kinds in (
        ("set_use_split_qkv_input", ("q_input", "k_input", "v_input")),
        ("set_use_attn_in", ("attn_in",)),
    ):
        names = [f"blocks.{block}.hook_{kind}" for kind in kinds]
        values, gradients = run_lens_backward(folder, ids, names, setting)
        for name, value in values.items():
            require(agree(value, stream[:, :, None].expand_as(value), TOLERANCE), f"{name} is not the stream")
        found |= {f"point.{name}": value for name, value in values.items()}
        found |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    return found


def check_trace(name: str, folder: Path, trace: Trace, gradients: Tensors, ids: Tensor, truth: Tensors) -> None:
    """The plain account must tell transformers' story end to end, and TransformerLens' in between."""
    require(agree(trace.logits, truth["logits"], TOLERANCE), f"{name}: logits differ")
    for parameter, gradient in parameter_gradients(trace.model).items():
        require(agree(gradient, truth[f"param_grad.{parameter}"], TOLERANCE), f"{name}: grad of {parameter}")
    for i in range(len(block_outputs(trace.model))):
        attn, post = f"blocks.{i}.attn", f"blocks.{i}.hook_resid_post"
        require(agree(gradients[post], truth[f"grad.{post}"], TOLERANCE), f"{name}: grad at {post}")
        rows = trace.points[f"{attn}.hook_pattern"].sum(-1)
        require(agree(rows, torch.ones_like(rows), TOLERANCE), f"{name}: pattern rows of block {i}")
        bias = getattr(getattr(block_outputs(trace.model)[i], trace.layout.attn), trace.layout.attn_out).bias
        summed = trace.points[f"{attn}.hook_result"].sum(2) + (0.0 if bias is None else bias)
        require(agree(summed, trace.points[f"{attn}.hook_out"], TOLERANCE), f"{name}: result of block {i}")
    # TransformerLens 4.3 hooks the mid stream where the MLP branch reads it, past the skip connection.
    lens = open_bridge(folder).hook_dict
    names = [point for point in gradients if point in lens and not point.endswith("hook_resid_mid")]
    for point, gradient in run_lens_backward(folder, ids, names)[1].items():
        require(agree(gradients[point], gradient, TOLERANCE), f"{name}: TransformerLens' grad at {point}")


def choose_points(name: str, trace: Trace, lens: Tensors) -> tuple[Tensors, dict[str, list[str]]]:
    """TransformerLens' value where it has the point (and it must agree), else the plain one."""
    points: Tensors = {}
    origin: dict[str, list[str]] = {"points_from_transformer_lens": [], "points_from_torch": []}
    # These are the very tensors hook_attn_out and hook_mlp_out, after or without post-norms.
    repeated = ("_post.hook_out",) if trace.layout.ln1_post else ("attn.hook_out", "mlp.hook_out")
    for point, value in sorted(trace.points.items()):
        if point.endswith(repeated) or (families.FAMILIES[name].slim and not point.endswith(SLIM_POINTS)):
            continue
        if point in lens:
            require(agree(value, lens[point], TOLERANCE), f"{name}: TransformerLens' {point} differs")
            value = lens[point]
        points[f"point.{point}"] = value
        origin["points_from_transformer_lens" if point in lens else "points_from_torch"].append(point)
    return points, origin


def reference(name: str, folder: Path, ids: Tensor) -> tuple[Tensors, dict]:
    """Everything known about one model and one batch, and where it comes from."""
    slim = families.FAMILIES[name].slim
    truth = run_transformers(folder, ids)
    trace = Trace(families.load(folder), ids)
    gradients = trace.gradients()
    check_trace(name, folder, trace, gradients, ids, truth)
    points, origin = choose_points(name, trace, run_lens(folder, ids))
    tensors = {"input_ids": ids} | points
    if not slim:
        kept = {f"grad.{point}": grad for point, grad in gradients.items() if point.endswith(tuple(GRADIENTS))}
        tensors |= kept | run_edited(folder, ids, truth)
    if name in SPLIT_INPUTS:
        last = len(block_outputs(trace.model)) - 1
        inputs = split_inputs(folder, ids, last, trace.points[f"blocks.{last}.hook_resid_pre"])
        origin["points_from_transformer_lens"] += sorted(k[6:] for k in inputs if k.startswith("point."))
        tensors |= inputs
    tensors |= truth  # transformers' own numbers win where several accounts have them
    versions = {module.__name__: str(module.__version__) for module in (torch, transformers)}
    versions["transformer_lens"] = version("transformer-lens")
    return {key: value.detach().contiguous() for key, value in tensors.items()}, versions | origin


def write(name: str, root: Path) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    ids = families.make(name, folder)
    tensors, origin = reference(name, folder, ids)
    # Clones: safetensors refuses tensors that share memory, as the taps of one value do.
    save_file({key: value.clone() for key, value in tensors.items()}, folder / "reference.safetensors")
    families.write_json(folder / "origin.json", origin)


def differences(committed: Path, fresh: Path) -> list[str]:
    """Files and tensors of one directory that are not the same in both, up to rounding."""
    names = {path.name for path in committed.iterdir()} | {path.name for path in fresh.iterdir()}
    found = []
    for file in sorted(names):
        old, new = committed / file, fresh / file
        if not (old.exists() and new.exists()):
            found.append(f"{file}: only in one of the two")
        elif old.read_bytes() == new.read_bytes():
            continue
        elif file.endswith(".json"):
            if json.loads(old.read_text()) != json.loads(new.read_text()):
                found.append(f"{file}: differs")
        else:
            was, now = load_file(old), load_file(new)
            found += [f"{file}: {key} only in one of the two" for key in sorted(was.keys() ^ now.keys())]
            for key in sorted(was.keys() & now.keys()):
                if not agree(now[key].float(), was[key].float(), TOLERANCE):
                    found.append(f"{file}: {key} differs")
    return found


def check(names: list[str]) -> int:
    """Makes everything again beside the committed files; returns how many families differ."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            write(name, Path(scratch))
            committed = DATA / name
            found = differences(committed, Path(scratch) / name) if committed.is_dir() else ["not committed"]
            print(f"{name:20} {'same' if not found else '; '.join(found[:5])}", flush=True)
            failed += bool(found)
    return failed


def quiet() -> None:
    """One thread gives the same bytes again; progress bars, load reports and hints say nothing here."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("--only", metavar="NAME", choices=sorted(families.FAMILIES), help="one family")
    options = parser.parse_args()
    names = [options.only] if options.only else list(families.FAMILIES)
    quiet()
    if options.check:
        return 1 if check(names) else 0
    for name in names:
        write(name, DATA)
        size = sum(path.stat().st_size for path in (DATA / name).iterdir())
        print(f"{name:20} {size / 1024:6.0f} KiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
