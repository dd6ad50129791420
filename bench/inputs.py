"""What both sides are measured with: models, tokens, vectors, configurations. All of it is a function of fixed seeds and formulas."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

STEERED_BLOCK, STRENGTH = 6, 4.0

# The points that TransformerLens has always had, and both sides have: for a capture of "all points" both keep these, and nothing else.
CLASSIC_POINTS = [
    "hook_embed",
    "hook_pos_embed",
    *(
        f"blocks.*.{name}"
        for name in (
            "hook_resid_pre",
            "ln1.hook_scale",
            "ln1.hook_normalized",
            "attn.hook_q",
            "attn.hook_k",
            "attn.hook_v",
            "attn.hook_attn_scores",
            "attn.hook_pattern",
            "attn.hook_z",
            "hook_attn_out",
            "hook_resid_mid",
            "ln2.hook_scale",
            "ln2.hook_normalized",
            "mlp.hook_pre",
            "mlp.hook_post",
            "hook_mlp_out",
            "hook_resid_post",
        )
    ),
    "ln_final.hook_scale",
    "ln_final.hook_normalized",
]


@dataclass(frozen=True)
class Sizes:
    """A GPT-2 with dropout off."""

    layers: int
    width: int
    heads: int
    vocab: int = 50257


GPT2_SMALL = Sizes(12, 768, 12)
D384 = Sizes(6, 384, 6)
TINY = Sizes(2, 32, 4, 101)


def make_model(folder: Path, sizes: Sizes) -> Path:
    """A model with random weights from a fixed seed, as a Hugging Face directory. Made once."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        off = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
        config = GPT2Config(n_layer=sizes.layers, n_embd=sizes.width, n_head=sizes.heads, vocab_size=sizes.vocab, **off)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def token_ids(count: int, vocab: int) -> Tensor:
    """The tokens of `tenterhook bench`."""
    return (7919 * torch.arange(count) + 17) % vocab


def batch_ids(batch: int, seq: int, vocab: int) -> Tensor:
    return token_ids(batch * seq, vocab).view(batch, seq)


def steering_vector(width: int) -> Tensor:
    return torch.sin(torch.arange(width, dtype=torch.float32))


def activations(count: int) -> Tensor:
    """The activations of `tenterhook bench sae`."""
    mixed = (np.arange(count, dtype=np.uint64) * 2654435761) & 0xFFFFFFFF
    return torch.from_numpy((mixed >> 8).astype(np.float32) / 2**23 - 1)


def write_steering(folder: Path, width: int, block: int) -> Path:
    """The hooks file of the steered workloads."""
    save_file({"vector": steering_vector(width)}, folder / "vector.safetensors")
    hooks = folder / "steer.toml"
    point = f"blocks.{block}.hook_resid_post"
    lines = ["[[hooks]]", 'kind = "steer"', f'points = "{point}"', 'vector = "vector.safetensors"', f"strength = {STRENGTH}"]
    hooks.write_text("\n".join(lines) + "\n")
    return hooks


@dataclass(frozen=True)
class Training:
    """A training run: AdamW and clipping on tokens from a file, in their natural order."""

    name: str
    sizes: Sizes
    batch: int
    seq: int
    lr: float = 3e-4
    clip: float = 1.0
    weight_decay: float = 0.01

    def tokens(self, steps: int) -> np.ndarray:
        """Enough for so many steps. A line is not learned by heart at once: the multiplier is not the vocabulary's."""
        count = steps * self.batch * self.seq + 1
        numbers = np.arange(count, dtype=np.uint64)
        return ((numbers * numbers * 31 + numbers * 7919 + 17) % self.sizes.vocab).astype(np.uint16)

    def batch_of(self, tokens: np.ndarray, step: int) -> tuple[Tensor, Tensor]:
        """Example i is `tokens[i * seq ..= i * seq + seq]`; the file begins again when it is over."""
        examples = (len(tokens) - 1) // self.seq
        rows = [(step * self.batch + row) % examples for row in range(self.batch)]
        pieces = np.stack([tokens[row * self.seq : row * self.seq + self.seq + 1] for row in rows]).astype(np.int64)
        whole = torch.from_numpy(pieces)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def write(self, folder: Path, model: Path, steps: int) -> Path:
        """The configuration, with its data beside it."""
        data, config = folder / f"{self.name}.bin", folder / f"{self.name}.toml"
        self.tokens(steps).tofile(data)
        paths = dict(model=json.dumps(str(model)), path=json.dumps(str(data)))
        config.write_text(CONFIG.format(**vars(self), **paths, steps=steps))
        return config


CONFIG = """\
[model]
from = {model}
dropout = 0.0

[data.train]
kind = "tokens"
path = {path}
block = {seq}
batch = {batch}
shuffle = false

[train]
steps = {steps}
grad_clip = {clip}

[[optimizer]]
kind = "adamw"
lr = {lr}
betas = [0.9, 0.999]
eps = 1e-8
weight_decay = {weight_decay}

[[hooks]]
kind = "gradient_monitor"
log_frequency = 1

[[hooks]]
kind = "lr_monitor"

[[hooks]]
kind = "json_log"
log_every_n_batches = 1
"""

D384_STEP = Training("d384", D384, 8, 256)
GPT2_STEP = Training("gpt2", GPT2_SMALL, 4, 128)
TINY_STEP = Training("tiny", TINY, 2, 16)
