#!/usr/bin/env python
"""Makes the numbers that the tests of `tenterhook-lens` compare patching with.

On the tiny models of three families, between a clean and a corrupted prompt, the difference of two logits at the last
position, as TransformerLens measures it on the raw weights:

    clean_ids, corrupted_ids, tokens (answer, wrong), clean, corrupted
    exact.<sweep>            `transformer_lens.patching`: resid_pre, resid_mid, attn_out, mlp_out by layer and position;
                             z, q, k, v, pattern by layer and head; z_by_pos by layer, position and head
    noise.resid_pre          the same with corrupted activations in the clean run
    attribution.<sweep>      (clean - corrupted) * gradient at the corrupted run, added to its metric
    path.<senders>.<receivers>.<frozen>   path patching, written out in hooks

    reference_patching.py                write all of them
    reference_patching.py --check        make them again and compare with the committed ones
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"

import torch
from reference import DATA as MODELS
from reference import agree, open_bridge, quiet
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformer_lens import patching

DATA = Path(__file__).resolve().parent.parent / "crates/lens/tests/data/patching"
FAMILIES = ("gpt2", "llama", "neox")
TOLERANCE = 1e-5
ANSWER, WRONG = 7, 23
CLEAN = [3, 17, 5, 40, 11, 29, 8]
CORRUPTED = [3, 17, 33, 40, 12, 29, 8]
SPLIT = "set_use_split_qkv_input"

Tensors = dict[str, Tensor]


def metric(logits: Tensor) -> Tensor:
    return logits[0, -1, ANSWER] - logits[0, -1, WRONG]


def exact(bridge, base: Tensor, source) -> Tensors:
    """Every sweep of `transformer_lens.patching` that the model has points for."""
    sweeps = {
        "resid_pre": patching.get_act_patch_resid_pre,
        "attn_out": patching.get_act_patch_attn_out,
        "mlp_out": patching.get_act_patch_mlp_out,
        "z": patching.get_act_patch_attn_head_out_all_pos,
        "q": patching.get_act_patch_attn_head_q_all_pos,
        "k": patching.get_act_patch_attn_head_k_all_pos,
        "v": patching.get_act_patch_attn_head_v_all_pos,
        "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
        "z_by_pos": patching.get_act_patch_attn_head_out_by_pos,
    }
    if "blocks.0.hook_resid_mid" in bridge.hook_dict:
        sweeps["resid_mid"] = patching.get_act_patch_resid_mid
    with torch.no_grad():
        return {f"exact.{name}": sweep(bridge, base, source, metric) for name, sweep in sweeps.items()}


def attribution(bridge, base: Tensor, source) -> Tensors:
    """The first order of what `exact` measures."""
    layers = bridge.cfg.n_layers
    kinds = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out", "z": "attn.hook_z"}
    names = [f"blocks.{layer}.{point}" for point in kinds.values() for layer in range(layers)]
    values, gradients = {}, {}
    for name in names:
        bridge.add_hook(name, lambda x, hook, name=name: values.update({name: x.detach().clone()}))
        bridge.add_hook(name, lambda g, hook, name=name: gradients.update({name: g.clone()}), dir="bwd")
    measured = metric(bridge(base))
    measured.backward()
    bridge.reset_hooks()
    found = {}
    for kind, point in kinds.items():
        rows = []
        for layer in range(layers):
            name = f"blocks.{layer}.{point}"
            effect = (source[name] - values[name]) * gradients[name]
            # By position, or by head over all positions.
            rows.append(effect.sum((0, 1, 3)) if kind == "z" else effect.sum((0, 2)))
        found[f"attribution.{kind}"] = torch.stack(rows).detach() + measured.detach()
    return found


def path(bridge, base: Tensor, source, frozen, senders: list, receivers: list, freeze_mlps: bool) -> Tensor:
    """Three runs: the two in the caches, one with the senders' outputs in which all other heads (and MLPs) stay as they
    are and the receivers' inputs are kept, and one in which the receivers read those."""
    layers, heard = bridge.cfg.n_layers, {}

    def set_z(x, hook, layer):
        x = frozen[hook.name].clone()
        for _, head in (sender for sender in senders if sender[0] == layer and sender[1] != "mlp"):
            x[:, :, head] = source[hook.name][:, :, head]
        return x

    def set_mlp(x, hook, layer):
        return source[hook.name] if (layer, "mlp") in senders else frozen[hook.name]

    def keep(x, hook):
        heard[hook.name] = x.detach().clone()

    def put(x, hook, head):
        x = x.clone()
        if head is None:
            x[:] = heard[hook.name]
        else:
            x[:, :, head] = heard[hook.name][:, :, head]
        return x

    first = [(f"blocks.{layer}.attn.hook_z", partial(set_z, layer=layer)) for layer in range(layers)]
    for layer in range(layers):
        if freeze_mlps or (layer, "mlp") in senders:
            first.append((f"blocks.{layer}.hook_mlp_out", partial(set_mlp, layer=layer)))
    first += [(name, keep) for name, _ in receivers]
    with torch.no_grad():
        bridge.run_with_hooks(base, fwd_hooks=first)
        return metric(bridge.run_with_hooks(base, fwd_hooks=[(name, partial(put, head=head)) for name, head in receivers]))


def paths(folder: Path, base: Tensor, clean: Tensor) -> Tensors:
    """A few paths of each sort, from block 0 to block 1 and to the end."""
    bridge = open_bridge(folder)
    getattr(bridge, SPLIT)(True)
    with torch.no_grad():
        source, frozen = bridge.run_with_cache(clean)[1], bridge.run_with_cache(base)[1]
    final = (f"blocks.{bridge.cfg.n_layers - 1}.hook_resid_post", None)
    cases = {
        "0.1.to.1.0.q": ([(0, 1)], [("blocks.1.hook_q_input", 0)]),
        "0.0.to.1.1.k": ([(0, 0)], [("blocks.1.hook_k_input", 1)]),
        "0.2.to.1.0.v": ([(0, 2)], [("blocks.1.hook_v_input", 0)]),
        "0.mlp.to.1.mlp": ([(0, "mlp")], [("blocks.1.hook_mlp_in", None)]),
        "0.1.to.final": ([(0, 1)], [final]),
        "0.0.0.1.to.1.2.q.1.1.v": ([(0, 0), (0, 1)], [("blocks.1.hook_q_input", 2), ("blocks.1.hook_v_input", 1)]),
    }
    return {
        f"path.{name}.{'frozen' if freeze else 'free'}": path(bridge, base, source, frozen, *case, freeze)
        for name, case in cases.items()
        for freeze in (False, True)
    }


def reference(name: str) -> Tensors:
    folder = MODELS / name
    clean, corrupted = torch.tensor([CLEAN]), torch.tensor([CORRUPTED])
    bridge = open_bridge(folder)
    with torch.no_grad():
        clean_logits, clean_cache = bridge.run_with_cache(clean)
        corrupted_logits, corrupted_cache = bridge.run_with_cache(corrupted)
        noise = patching.get_act_patch_resid_pre(bridge, clean, corrupted_cache, metric)
    found = {
        "clean_ids": clean[0],
        "corrupted_ids": corrupted[0],
        "tokens": torch.tensor([ANSWER, WRONG]),
        "clean": metric(clean_logits),
        "corrupted": metric(corrupted_logits),
        "noise.resid_pre": noise,
    }
    found |= exact(bridge, corrupted, clean_cache)
    found |= attribution(bridge, corrupted, clean_cache)
    found |= paths(folder, corrupted, clean)
    return {key: value.detach().float().contiguous() if value.is_floating_point() else value for key, value in found.items()}


def check(name: str) -> list[str]:
    was, now = load_file(DATA / f"{name}.safetensors"), reference(name)
    found = [f"{key} only in one of the two" for key in sorted(was.keys() ^ now.keys())]
    return found + [
        f"{key} differs" for key in sorted(was.keys() & now.keys()) if not agree(now[key].float(), was[key].float(), TOLERANCE)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    options = parser.parse_args()
    quiet()
    failed = 0
    for name in FAMILIES:
        if options.check:
            found = check(name)
            print(f"patching {name:11} {'same' if not found else '; '.join(found[:5])}", flush=True)
            failed += bool(found)
        else:
            DATA.mkdir(parents=True, exist_ok=True)
            save_file(reference(name), DATA / f"{name}.safetensors")
            print(f"{name:20} {(DATA / f'{name}.safetensors').stat().st_size / 1024:6.1f} KiB", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
