#!/usr/bin/env python
"""Makes the numbers that the tests of the controllers compare with: what a model says after an intervention.

For three families, `crates/lens/tests/data/interventions_<family>.safetensors` has

    ids, other_ids           two batches of the same shape
    vector                   what is steered with
    logits.<intervention>    TransformerLens' logits of `ids` under it
    generated.ids            what transformers generates greedily from the first sequence, steered at every token, with its cache
    generated.logits         and the logits it chose from

    reference_interventions.py            write them
    reference_interventions.py --check    make them again and compare with the committed ones
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import families
from reference import agree, block_outputs, open_bridge, quiet, require

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "crates/models/tests/data"
DATA = ROOT / "crates/lens/tests/data"
FAMILIES = ("gpt2", "llama", "neox")
NEW_TOKENS = 8
STREAM = "blocks.0.hook_resid_post"


def interventions(vector: Tensor, other: dict[str, Tensor]) -> dict[str, tuple[str, object]]:
    """Name -> (point, hook)."""

    def zero_head(z, hook):
        z = z.clone()
        z[:, :, 1] = 0.0
        return z

    def zero_positions(x, hook):
        x = x.clone()
        x[:, [0, 3]] = 0.0
        return x

    def steer(x, hook):
        return x + 1.5 * vector

    def patch(x, hook):
        x = x.clone()
        x[:, [1, 4]] = other[hook.name][:, [1, 4]]
        return x

    def patch_head(z, hook):
        z = z.clone()
        z[:, :, 0] = other[hook.name][:, :, 0]
        return z

    def mean(x, hook):
        return x.mean((0, 1), keepdim=True).expand_as(x)

    def scale_neurons(x, hook):
        x = x.clone()
        x[..., [2, 5]] *= -2.0
        return x

    def knock_out(scores, hook):
        scores = scores.clone()
        scores[:, :, 3:, 1] = -torch.inf
        return scores

    return {
        "zero_head": ("blocks.0.attn.hook_z", zero_head),
        "zero_positions": ("blocks.1.hook_mlp_out", zero_positions),
        "steer": (STREAM, steer),
        "patch": (STREAM, patch),
        "patch_head": ("blocks.1.attn.hook_z", patch_head),
        "mean": ("blocks.0.hook_attn_out", mean),
        "scale_neurons": ("blocks.1.mlp.hook_post", scale_neurons),
        "knockout": ("blocks.1.attn.hook_attn_scores", knock_out),
    }


def generate(folder: Path, prompt: Tensor, vector: Tensor) -> dict[str, Tensor]:
    """transformers' own cached greedy generation, steered by a forward hook on the first block."""
    model = families.load(folder)

    def steer(_module, _inputs, output):
        if isinstance(output, tuple):
            return (output[0] + 1.5 * vector, *output[1:])
        return output + 1.5 * vector

    block_outputs(model)[0].register_forward_hook(steer)
    with torch.no_grad():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return {"generated.ids": out.sequences[0, prompt.shape[1] :], "generated.logits": torch.stack(out.logits, 1)[0]}


def make(family: str) -> dict[str, Tensor]:
    folder = MODELS / family
    generator = torch.Generator().manual_seed(len(family))
    config = families.load(folder).config
    ids = torch.randint(0, config.vocab_size, (2, 7), generator=generator)
    other_ids = torch.randint(0, config.vocab_size, (2, 7), generator=generator)
    vector = torch.randn(config.hidden_size, generator=generator)
    with torch.no_grad():
        _, cache = open_bridge(folder).run_with_cache(other_ids)
    other = {name: value.detach().clone() for name, value in cache.items()}
    tensors = {"ids": ids, "other_ids": other_ids, "vector": vector}
    with torch.no_grad():
        plain = open_bridge(folder)(ids)
        for name, (point, hook) in interventions(vector, other).items():
            # A bridge of its own for each: none can leave anything behind for the next.
            logits = open_bridge(folder).run_with_hooks(ids, fwd_hooks=[(point, hook)])
            require(not agree(logits, plain, 1e-4), f"{family}: {name} does nothing")
            tensors[f"logits.{name}"] = logits.contiguous()
    return tensors | generate(folder, ids[:1], vector)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is committed")
    check = parser.parse_args().check
    quiet()
    DATA.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        path = DATA / f"interventions_{family}.safetensors"
        tensors = make(family)
        if not check:
            save_file({name: value.contiguous() for name, value in tensors.items()}, path)
            print(f"wrote {path.relative_to(ROOT)}")
            continue
        committed = load_file(path)
        require(committed.keys() == tensors.keys(), f"{family}: other tensors than committed")
        for name, value in tensors.items():
            require(agree(value.float(), committed[name].float(), 1e-4), f"{family}: {name} differs")
        print(f"{family}: as committed")


if __name__ == "__main__":
    sys.exit(main())
