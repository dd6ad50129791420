#!/usr/bin/env python
"""Makes the reference numbers that the analyses of `tenterhook-lens` compare with.

For a few families, what TransformerLens (raw weights, nothing folded or centred) says about the first text of the
committed reference model, in `crates/lens/tests/data/analysis/<family>.safetensors`:

    ids, repeated_ids          the text; a text in which every token comes twice
    lens.logits                [point, pos, vocab]: accumulated_resid through the final norm and the unembedding
    layers, heads, neurons     decompose_resid, stack_head_results, stack_neuron_results (the latter at NEURON_PLACES); for
                               Gemma 2 behind the norm through which heads and neurons write
    attribution.<by>           direct logit attribution of ANSWER - WRONG at the last token
    attribution.constant, attribution.logit
    qk.singular, ov.singular   [layer, head, d_head]
    ov.copying                 [layer, head]: sum of the eigenvalues of the full OV circuit by the sum of their sizes
    composition.<Q|K|V>        all_composition_scores
    detector.<kind>            [layer, head]: head_detector's score on repeated_ids
    stripe.<kind>              [layer, head]: the mean of the diagonal on which such a head's attention lies

    reference_analysis.py            write all of them
    reference_analysis.py --check    make them again and compare with the committed ones
"""

import argparse
import sys
from pathlib import Path

from reference import DATA as MODELS
from reference import TOLERANCE, agree, open_bridge, quiet, require

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformer_lens import FactoredMatrix, head_detector

import families

DATA = Path(__file__).resolve().parent.parent / "crates/lens/tests/data/analysis"
FAMILIES = ("gpt2", "llama", "neox", "gemma2")
ANSWER, WRONG = 7, 30
NEURON_PLACES = [3, -1]

Tensors = dict[str, Tensor]


def final_norm(model) -> tuple[Tensor, Tensor | None]:
    """Gain and bias as they are used: Gemma stores the gain minus one."""
    trunk = model.base_model
    norm = next(getattr(trunk, name) for name in ("ln_f", "norm", "final_layer_norm") if hasattr(trunk, name))
    offset = 1.0 if "Gemma" in type(norm).__name__ else 0.0
    return norm.weight + offset, getattr(norm, "bias", None)


def soft_cap(model, logits: Tensor) -> Tensor:
    cap = getattr(model.config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


def lens(bridge, cache, model, mid: bool) -> Tensors:
    streams = cache.accumulated_resid(apply_ln=True, incl_mid=mid)
    logits = soft_cap(model, streams @ unembedding(model))
    return {"lens.logits": logits[:, 0]}


def unembedding(model) -> Tensor:
    return model.get_output_embeddings().weight.T


def units(cache, model, kind: str) -> Tensor:
    """What every head or neuron adds to the stream. TransformerLens shows Gemma 2's before the norm through which they write: its divisor
    is what it was, its gain is stored minus one."""
    stack = cache.stack_head_results() if kind == "heads" else cache.stack_neuron_results(-1)
    if model.config.model_type != "gemma2":
        return stack
    name, module = ("ln1_post", "post_attention_layernorm") if kind == "heads" else ("ln2_post", "post_feedforward_layernorm")
    layers = stack.reshape(model.config.num_hidden_layers, -1, *stack.shape[1:])
    written = [
        part / cache[f"blocks.{i}.{name}.hook_scale"] * (1 + getattr(model.base_model.layers[i], module).weight)
        for i, part in enumerate(layers)
    ]
    return torch.cat(written)


def decomposed(cache, model) -> Tensors:
    """Every stack must be the stream, or what was added to it, before it is written."""
    layers = cache.decompose_resid()[:, 0]
    last = cache["resid_post", model.config.num_hidden_layers - 1][0]
    require(agree(layers.sum(0), last, TOLERANCE), "the layers are not the stream")
    return {
        "layers": layers,
        "heads": units(cache, model, "heads")[:, 0],
        "neurons": units(cache, model, "neurons")[:, 0, NEURON_PLACES],
    }


def attributed(cache, model, logits: Tensor) -> Tensors:
    """The gain of the final norm is a factor on the direction, its bias a constant."""
    gain, bias = final_norm(model)
    direction = unembedding(model)[:, ANSWER] - unembedding(model)[:, WRONG]

    def given(stack: Tensor) -> Tensor:
        return cache.apply_ln_to_stack(stack, layer=-1)[:, 0, -1] @ (gain * direction)

    found = {"attribution.layer": given(cache.decompose_resid())}
    constant = torch.zeros(()) if bias is None else bias @ direction
    total = found["attribution.layer"].sum() + constant
    if soft_cap(model, torch.ones(1)) == 1:
        require(agree(total, logits[0, -1, ANSWER] - logits[0, -1, WRONG], 10 * TOLERANCE), "the parts are not the logits")
    found["attribution.head"] = given(units(cache, model, "heads"))
    found["attribution.neuron"] = given(units(cache, model, "neurons"))
    return found | {"attribution.constant": constant, "attribution.logit": total}


def circuits(bridge, model) -> Tensors:
    qk, ov = bridge.QK, bridge.OV
    whole = FactoredMatrix(bridge.W_E @ ov.A, ov.B @ unembedding(model))
    values = whole.eigenvalues
    found = {
        "qk.singular": qk.S,
        "ov.singular": ov.S,
        "ov.copying": values.sum(-1).real / values.abs().sum(-1),
    }
    for kind in "QKV":
        found[f"composition.{kind}"] = bridge.all_composition_scores(kind).scores
    return found


def detected(bridge, ids: Tensor) -> Tensors:
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids)
    layers = range(bridge.cfg.n_layers)
    patterns = torch.stack([cache["pattern", layer][0] for layer in layers])
    half, found = ids.shape[1] // 2, {}
    for kind, start, offset in (("induction", half, 1 - half), ("previous_token", 1, -1), ("duplicate_token", half, -half)):
        wanted = getattr(head_detector, f"get_{kind}_head_detection_pattern")(ids)
        score = lambda pattern: head_detector.compute_head_attention_similarity_score(
            pattern, wanted, exclude_bos=False, exclude_current_token=False, error_measure="mul"
        )
        found[f"detector.{kind}"] = torch.tensor([[score(head) for head in layer] for layer in patterns])
        # The first half cannot know what is to come.
        places = torch.arange(start, ids.shape[1])
        found[f"stripe.{kind}"] = patterns[:, :, places, places + offset].mean(-1)
    return found


def reference(name: str) -> Tensors:
    folder = MODELS / name
    ids = load_file(folder / "reference.safetensors")["input_ids"][:1]
    source = families.random_source(name, 99)
    random = torch.randperm(families.VOCAB, generator=source)[None, :7]
    repeated = torch.cat([random, random], 1)
    bridge, model = open_bridge(folder), families.load(folder)
    bridge.set_use_attn_result(True)
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids)
        mid = not getattr(model.config, "use_parallel_residual", False)
        tensors = lens(bridge, cache, model, mid) | decomposed(cache, model) | attributed(cache, model, logits)
        require(agree(tensors["lens.logits"][-1], model(ids).logits[0], TOLERANCE), f"{name}: the lens does not end in the logits")
        tensors |= circuits(bridge, model) | detected(bridge, repeated)
    tensors |= {"ids": ids[0], "repeated_ids": repeated[0]}
    return {key: value.detach().contiguous().clone() for key, value in tensors.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    options = parser.parse_args()
    quiet()
    DATA.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in FAMILIES:
        path, made = DATA / f"{name}.safetensors", reference(name)
        if not options.check:
            save_file(made, path)
            print(f"{name:20} {path.stat().st_size / 1024:6.0f} KiB", flush=True)
            continue
        was = load_file(path) if path.exists() else {}
        wrong = sorted(made.keys() ^ was.keys())
        wrong += [key for key in made.keys() & was.keys() if not agree(made[key].float(), was[key].float(), TOLERANCE)]
        print(f"{name:20} {'same' if not wrong else 'differs: ' + ', '.join(wrong[:5])}", flush=True)
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
