#!/usr/bin/env python
"""Makes the reference numbers that the tests of `tenterhook-sae` compare with: what SAELens writes and computes.

For every case of `SAVED`, a directory that SAELens wrote, and beside it `reference.safetensors`:

    input, acts, recons          activations, their latents, what the latents decode to

For every case of `TRAINED`, `train_<name>.safetensors`, a run of `STEPS` steps on one thread in f32 (Adam, gradients clipped to norm 1):

    x                            [steps, batch, d_in]
    before.<weight>              the weights at first; after.<weight>: at the end
    grad.<weight>                the gradients of the first step, before clipping
    loss.<name>                  [steps], the terms of the loss
    dead                         [steps], how many latents counted as dead before each step
    topk_threshold               at the end, for batchtopk

and the settings in `train_<name>.json`.

`inside/` is an autoencoder for the residual stream of the tiny GPT-2 of `tenterhook-models`; `expected.json` has SAELens' measures of it
and transformers' logits with it in the model, as the hook kind `sae` puts it there.

A latent is dead when it has not fired for more than `window` batches.

    reference_sae.py            write all of them
    reference_sae.py --check    make them again elsewhere and compare with the committed ones
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
warnings.filterwarnings("ignore")

import torch
from safetensors.torch import load_file, save_file
from sae_lens import (
    SAE,
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
    GatedSAE,
    GatedSAEConfig,
    GatedTrainingSAE,
    GatedTrainingSAEConfig,
    JumpReLUSAE,
    JumpReLUSAEConfig,
    JumpReLUTrainingSAE,
    JumpReLUTrainingSAEConfig,
    StandardSAE,
    StandardSAEConfig,
    StandardTrainingSAE,
    StandardTrainingSAEConfig,
    TopKSAE,
    TopKSAEConfig,
    TopKTrainingSAE,
    TopKTrainingSAEConfig,
)
from sae_lens.evals import ExplainedVarianceCalculator
from sae_lens.saes.sae import SAEMetadata, TrainStepInput
from torch import Tensor
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "crates/sae/tests/data"
MODEL = ROOT / "crates/models/tests/data/gpt2"
D_IN, D_SAE, ROWS = 8, 24, 6
STEPS, BATCH, LR = 12, 16, 3e-2
TOLERANCE = 1e-5

RESID, HOOK_Z = "blocks.1.hook_resid_post", "blocks.0.attn.hook_z"

# name -> (class, configuration class, options, point)
SAVED = {
    "standard": (StandardSAE, StandardSAEConfig, {}, RESID),
    "standard_layer_norm": (
        StandardSAE,
        StandardSAEConfig,
        dict(normalize_activations="layer_norm", apply_b_dec_to_input=False),
        RESID,
    ),
    "standard_hook_z": (StandardSAE, StandardSAEConfig, dict(reshape_activations="hook_z"), HOOK_Z),
    "topk": (TopKSAE, TopKSAEConfig, dict(k=4), RESID),
    "topk_rescaled": (TopKSAE, TopKSAEConfig, dict(k=5, rescale_acts_by_decoder_norm=True), RESID),
    "topk_constant_norm": (TopKSAE, TopKSAEConfig, dict(k=4, normalize_activations="constant_norm_rescale"), RESID),
    "jumprelu": (JumpReLUSAE, JumpReLUSAEConfig, {}, RESID),
    "gated": (GatedSAE, GatedSAEConfig, dict(normalize_activations="expected_average_only_in"), RESID),
    "batchtopk": (BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig, dict(k=3.5), RESID),
}

# name -> (class, configuration class, options, window)
TRAINED = {
    "standard": (StandardTrainingSAE, StandardTrainingSAEConfig, dict(l1_coefficient=0.7, l1_warm_up_steps=5), 3),
    "topk": (TopKTrainingSAE, TopKTrainingSAEConfig, dict(k=3, aux_loss_coefficient=0.5), 1),
    "topk_plain": (TopKTrainingSAE, TopKTrainingSAEConfig, dict(k=3, rescale_acts_by_decoder_norm=False), 1),
    "batchtopk": (BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig, dict(k=2.5, topk_threshold_lr=0.1), 1),
    "jumprelu": (
        JumpReLUTrainingSAE,
        JumpReLUTrainingSAEConfig,
        dict(
            l0_coefficient=0.3,
            l0_warm_up_steps=4,
            jumprelu_init_threshold=0.05,
            jumprelu_bandwidth=0.3,
            pre_act_loss_coefficient=0.05,
        ),
        1,
    ),
    "jumprelu_tanh": (
        JumpReLUTrainingSAE,
        JumpReLUTrainingSAEConfig,
        dict(
            l0_coefficient=0.2,
            jumprelu_init_threshold=0.1,
            jumprelu_bandwidth=0.5,
            jumprelu_sparsity_loss_mode="tanh",
            jumprelu_ste_to_input=True,
        ),
        1,
    ),
    "jumprelu_quadratic": (
        JumpReLUTrainingSAE,
        JumpReLUTrainingSAEConfig,
        dict(
            l0_coefficient=0.1,
            jumprelu_init_threshold=0.1,
            jumprelu_bandwidth=0.5,
            jumprelu_sparsity_loss_mode="quadratic",
            pre_act_loss_coefficient=0.05,
            target_l0=4.0,
        ),
        1,
    ),
    "gated": (GatedTrainingSAE, GatedTrainingSAEConfig, dict(l1_coefficient=0.4), 3),
}

Tensors = dict[str, Tensor]


def randomize(sae: SAE, seed: int) -> None:
    """Weights of ordinary size, none of them zero: fresh ones would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(sae.named_parameters()):
            scale = 0.5 if weight.dim() == 2 else 0.2
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            if name == "threshold":
                weight.abs_()


def inputs(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def saved(name: str, folder: Path, seed: int) -> None:
    """One directory that SAELens wrote, with what it computes."""
    kind, config, options, hook_name = SAVED[name]
    metadata = SAEMetadata(hook_name=hook_name, model_name="tiny", prepend_bos=False, context_size=16)
    sae = kind(config(d_in=D_IN, d_sae=D_SAE, metadata=metadata, **options))
    randomize(sae, seed)
    if name == "batchtopk":
        sae.topk_threshold.fill_(0.4)
        sae.save_inference_model(folder)
    else:
        sae.save_model(folder)
    sae = SAE.load_from_disk(folder)
    x = inputs(seed + 100, 2, ROWS, 2, D_IN // 2) if "hook_z" in name else inputs(seed + 100, 2, ROWS, D_IN)
    with torch.no_grad():
        acts = sae.encode(x)
        recons = sae.decode(acts)
    save_file(dict(input=x, acts=acts, recons=recons), folder / "reference.safetensors")


def trained(name: str, folder: Path, seed: int) -> None:
    """A short run with the steps of SAELens' trainer."""
    kind, config, options, window = TRAINED[name]
    torch.manual_seed(seed)
    sae = kind(config(d_in=D_IN, d_sae=D_SAE, **options))
    with torch.no_grad():
        # Fresh weights are all alike: the encoder and the biases move a little, so that every gradient says something.
        generator = torch.Generator().manual_seed(seed)
        for weight_name, weight in sorted(sae.named_parameters()):
            if weight_name != "threshold":
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)
    x = inputs(seed + 100, STEPS, BATCH, D_IN)
    optimizer = torch.optim.Adam(sae.parameters(), lr=LR, betas=(0.9, 0.999))
    tensors: Tensors = {f"before.{key}": value.detach().clone() for key, value in sae.named_parameters()}
    coefficients = {key: (c if isinstance(c, float) else c) for key, c in sae.get_coefficients().items()}
    since_fired = torch.zeros(D_SAE)
    losses: dict[str, list[float]] = {}
    dead_counts: list[float] = []
    for step in range(STEPS):
        now = {key: c.value * min(1.0, step / c.warm_up_steps if c.warm_up_steps else 1.0) for key, c in coefficients.items()}
        dead = since_fired > window
        dead_counts.append(float(dead.sum()))
        output = sae.training_forward_pass(
            TrainStepInput(
                sae_in=x[step], coefficients=now, dead_neuron_mask=dead, n_training_steps=step, is_logging_step=False
            )
        )
        for key, value in output.losses.items():
            losses.setdefault(key, []).append(float(value))
        fired = output.feature_acts.bool().sum(0) > 0
        since_fired += 1
        since_fired[fired] = 0
        output.loss.backward()
        if step == 0:
            tensors.update({f"grad.{key}": value.grad.detach().clone() for key, value in sae.named_parameters()})
        torch.nn.utils.clip_grad_norm_(sae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        if hasattr(sae, "threshold"):
            sae.threshold.clamp_(min=0.0)  # SAELens does it before the next step
    tensors.update({f"after.{key}": value.detach().clone() for key, value in sae.named_parameters()})
    tensors.update({f"loss.{key}": torch.tensor(values) for key, values in losses.items()})
    tensors.update(x=x, dead=torch.tensor(dead_counts))
    if name == "batchtopk":
        tensors["topk_threshold"] = sae.topk_threshold.float().reshape(1)
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / f"train_{name}.safetensors")
    settings = dict(architecture=sae.cfg.architecture(), lr=LR, window=window, **options)
    (folder / f"train_{name}.json").write_text(json.dumps(settings, indent=2) + "\n")


def replaced(sae: SAE, options: dict):
    """What the hook kind `sae` makes of activations, in plain words."""

    def change(x: Tensor) -> Tensor:
        acts = sae.encode(x)
        edited = acts.clone()
        for edit in options.get("latents", []):
            act = edited[..., edit["latent"]]
            act = torch.full_like(act, edit["set"]) if "set" in edit else act * edit.get("scale", 1.0)
            act = act + edit.get("add", 0.0)
            edited[..., edit["latent"]] = act.clamp(edit.get("min"), edit.get("max")) if {"min", "max"} & edit.keys() else act
        if options.get("error_term", True):
            new = x + sae.decode(edited) - sae.decode(acts)
        else:
            new = sae.decode(edited)
        new = x + options.get("strength", 1.0) * (new - x)
        if "positions" in options:
            keep = x.clone()
            keep[:, options["positions"]] = new[:, options["positions"]]
            new = keep
        return new

    return change


def inside(folder: Path) -> None:
    """An autoencoder in the tiny GPT-2, as transformers and SAELens see it."""
    model = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    width, point = model.config.n_embd, "blocks.0.hook_resid_post"
    metadata = SAEMetadata(hook_name=point, model_name="tiny", context_size=16)
    sae = TopKSAE(TopKSAEConfig(d_in=width, d_sae=48, k=6, metadata=metadata))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        decoder = torch.randn(48, width, generator=generator)
        sae.W_dec.copy_(decoder / decoder.norm(dim=1, keepdim=True))
        sae.W_enc.copy_(sae.W_dec.T)
        sae.b_enc.fill_(0.05)
    sae.save_model(folder)
    lengths = [12, 9, 12, 5, 16]
    sequences = [[(7 * i * i + 13 * i + 5 * n) % 40 for i in range(length)] for n, length in enumerate(lengths)]

    def run(ids: list[int], change=None) -> tuple[Tensor, Tensor]:
        seen = []

        def hook(_module, _input, output):
            x = output[0] if isinstance(output, tuple) else output
            seen.append(x.detach())
            x = x if change is None else change(x)
            return (x, *output[1:]) if isinstance(output, tuple) else x

        handle = model.transformer.h[0].register_forward_hook(hook)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        handle.remove()
        return logits, seen[0][0]

    def loss(change) -> float:
        terms = [
            torch.nn.functional.cross_entropy(run(ids, change)[0][:-1], torch.tensor(ids[1:]), reduction="none")
            for ids in sequences
        ]
        return float(torch.cat(terms).mean())

    x = torch.cat([run(ids)[1] for ids in sequences])
    with torch.no_grad():
        acts = sae.encode(x)
        recons = sae.decode(acts)
    variance = ExplainedVarianceCalculator()
    variance.add_batch(recons, x)
    losses = [loss(change) for change in (None, replaced(sae, dict(error_term=False)), torch.zeros_like)]
    evaluation = dict(
        l0=float((acts != 0).sum(-1).float().mean()),
        mse=float((x - recons).pow(2).sum(-1).mean()),
        explained_variance=variance.compute(),
        cossim=float(torch.nn.functional.cosine_similarity(x, recons).mean()),
        l2_ratio=float((recons.norm(dim=-1) / x.norm(dim=-1)).mean()),
        dead_share=float((acts.sum(0) == 0).float().mean()),
        ce_loss_without_sae=losses[0],
        ce_loss_with_sae=losses[1],
        ce_loss_with_ablation=losses[2],
        ce_loss_score=(losses[2] - losses[1]) / (losses[2] - losses[0]),
    )
    common = int(acts.count_nonzero(0).argmax())
    cases = [
        dict(error_term=False),
        dict(latents=[dict(latent=common, scale=0.0)]),
        dict(latents=[dict(latent=3, add=6.0), dict(latent=common, set=2.5)], strength=0.5),
        dict(latents=[dict(latent=common, scale=4.0, max=1.5), dict(latent=7, min=1.0)], error_term=False),
        dict(latents=[dict(latent=3, add=6.0)], positions=[1, 5]),
    ]
    cases = [
        dict(options=options, logits=[[round(float(v), 6) for v in row] for row in run(sequences[0], replaced(sae, options))[0][-3:]])
        for options in cases
    ]
    expected = dict(sequences=sequences, eval=evaluation, cases=cases)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    inside(folder / "inside")
    for seed, name in enumerate(SAVED):
        saved(name, folder / name, seed)
    for seed, name in enumerate(TRAINED):
        trained(name, folder, 50 + seed)


def check() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        make(made)
        wrong = 0
        for path in sorted(made.rglob("*.safetensors")):
            name = path.relative_to(made)
            new, old = load_file(path), load_file(DATA / name)
            if new.keys() != old.keys():
                print(f"{name}: other tensors: {sorted(new.keys() ^ old.keys())}")
                wrong += 1
                continue
            # A run carries rounding on: other builds of torch round otherwise.
            tolerance = 1e-3 if str(name).startswith("train_") else TOLERANCE
            for key in new:
                difference = float((new[key].float() - old[key].float()).abs().max())
                if not difference <= tolerance:
                    print(f"{name}: {key} differs by {difference}")
                    wrong += 1
        new, old = (json.loads((folder / "inside/expected.json").read_text()) for folder in (made, DATA))
        for key in new["eval"]:
            if not abs(new["eval"][key] - old["eval"][key]) <= 1e-4 * (1 + abs(old["eval"][key])):
                print(f"inside: {key} is {new['eval'][key]}, was {old['eval'][key]}")
                wrong += 1
        for a, b in zip(new["cases"], old["cases"], strict=True):
            difference = float((torch.tensor(a["logits"]) - torch.tensor(b["logits"])).abs().max())
            if a["options"] != b["options"] or not difference <= 1e-4:
                print(f"inside: {a['options']} differs by {difference}")
                wrong += 1
        print(f"{'FAILED' if wrong else 'ok'}: the references of tenterhook-sae")
        return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    if parser.parse_args().check:
        return check()
    DATA.mkdir(parents=True, exist_ok=True)
    make(DATA)
    return 0


if __name__ == "__main__":
    sys.exit(main())
