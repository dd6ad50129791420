"""Tiny random models, one per family that Tenterhook reads, written as the directories people have on disk.

The sizes are small enough to commit and odd enough that a transposed axis, a wrong head or a forgotten
bias cannot pass by accident; every parameter is random, biases and norms included.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB, BATCH, TOKENS = 61, 2, 11
WINDOW = 4  # well below TOKENS, so that a sliding window shows

# No padding id: an embedding with one silently drops that row's gradient.
SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)


@dataclass(frozen=True)
class Family:
    """A model to make and the way its directory is written."""

    config: Callable[[], PreTrainedConfig]
    write: Callable[[PreTrainedModel, Path], None]
    # Variants of how a model is stored or rotated keep only what their difference can touch.
    slim: bool = False


def decoder(cls: type, width=20, mlp=28, layers=2, head=6, **more) -> PreTrainedConfig:
    """The spelling shared by Llama and everything after it: grouped kv heads, gated MLP, rotary."""
    sizes = dict(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    if head is not None:
        sizes["head_dim"] = head
    return cls(**(sizes | SPECIAL | more))


def rope(kind="default", theta=50.0, **more) -> dict:
    """Rotary parameters; the small base spreads the frequencies of a tiny head over every scaling regime."""
    return dict(rope_type=kind, rope_theta=theta, **more)


def gpt2(**more) -> GPT2Config:
    sizes = dict(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_inner=36, n_positions=16)
    return GPT2Config(**(sizes | SPECIAL | more))


def neox(**more) -> GPTNeoXConfig:
    sizes = dict(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=36,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=32,
    )
    return GPTNeoXConfig(**(sizes | SPECIAL | more))


def phi3(partial=1.0, **more) -> Phi3Config:
    # Phi-3 has no head_dim: the width decides. A factor of 0.7 turns 4 of its 6 dimensions.
    parameters = rope(partial_rotary_factor=partial) | more.pop("rope_parameters", {})
    return decoder(Phi3Config, width=24, head=None, rope_parameters=parameters, **more)


def longrope(original: int) -> Phi3Config:
    """Short factors up to `original` tokens, long ones beyond."""
    factors = dict(short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.0, 3.0])
    parameters = rope("longrope", original_max_position_embeddings=original, **factors)
    return phi3(rope_parameters=parameters, original_max_position_embeddings=original)


def save(model: PreTrainedModel, folder: Path, **options) -> None:
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)


def save_bf16(model: PreTrainedModel, folder: Path) -> None:
    save(model.to(torch.bfloat16), folder)


def save_sharded(model: PreTrainedModel, folder: Path) -> None:
    save(model, folder, max_shard_size="15KB")


def save_published_gpt2(model: PreTrainedModel, folder: Path) -> None:
    """As the first GPT-2 files were published: no prefix, no head, mask buffers among the weights,
    and a config that leaves out `n_inner` and the dtype."""
    weights = dict(model.transformer.state_dict())
    size = model.config.n_positions
    for i in range(model.config.n_layer):
        weights[f"h.{i}.attn.bias"] = torch.ones(size, size).tril().view(1, 1, size, size)
        weights[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    kept = "activation_function attn_pdrop bos_token_id embd_pdrop eos_token_id initializer_range".split()
    kept += "layer_norm_epsilon model_type n_embd n_head n_layer n_positions resid_pdrop vocab_size".split()
    config = model.config.to_dict()
    published = {key: config[key] for key in kept} | {"architectures": ["GPT2LMHeadModel"], "n_ctx": size}
    write_json(folder / "config.json", published)


def save_old_llama(model: PreTrainedModel, folder: Path) -> None:
    """The config as transformers 4 spelt it, which most published directories still do."""
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters["rope_theta"]
    config["rope_scaling"] = {"type": parameters["rope_type"], "factor": parameters["factor"]}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.36.0"
    write_json(folder / "config.json", config)


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def linear_llama() -> LlamaConfig:
    return decoder(LlamaConfig, rope_parameters=rope("linear", factor=2.0))


def llama3() -> LlamaConfig:
    # Wavelengths 6, 23 and 85 against bounds of 8 and 32: kept, blended, stretched.
    scaling = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    return decoder(
        LlamaConfig,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        rope_parameters=rope("llama3", **scaling),
    )


def yarn_llama() -> LlamaConfig:
    scaling = dict(factor=4.0, original_max_position_embeddings=64)
    return decoder(LlamaConfig, max_position_embeddings=256, rope_parameters=rope("yarn", **scaling))


def gemma2() -> Gemma2Config:
    return decoder(
        Gemma2Config,
        layers=3,
        sliding_window=WINDOW,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        rope_parameters=rope(),
    )


FAMILIES = {
    "gpt2": Family(gpt2, save),
    "gpt2_bf16": Family(gpt2, save_bf16, slim=True),
    "gpt2_published": Family(lambda: gpt2(n_embd=16, n_inner=None), save_published_gpt2, slim=True),
    "neox": Family(lambda: neox(rotary_pct=0.25, layer_norm_eps=1e-3), save),
    "neox_sequential": Family(lambda: neox(rotary_pct=0.5, use_parallel_residual=False), save),
    "llama": Family(lambda: decoder(LlamaConfig, rope_parameters=rope(theta=10000.0)), save),
    "llama3": Family(llama3, save),
    "llama_linear": Family(linear_llama, save, slim=True),
    "llama_yarn": Family(yarn_llama, save, slim=True),
    "llama_sharded": Family(lambda: decoder(LlamaConfig), save_sharded, slim=True),
    "llama_old_config": Family(linear_llama, save_old_llama, slim=True),
    "mistral": Family(lambda: decoder(MistralConfig, layers=3, sliding_window=WINDOW), save),
    "qwen2": Family(lambda: decoder(Qwen2Config, width=24, head=None, tie_word_embeddings=True), save),
    "qwen3": Family(lambda: decoder(Qwen3Config, rms_norm_eps=1e-3), save),
    "gemma2": Family(gemma2, save),
    "phi3": Family(lambda: phi3(partial=0.7), save),
    "phi3_longrope": Family(lambda: longrope(original=8), save, slim=True),
    "phi3_longrope_short": Family(lambda: longrope(original=16), save, slim=True),
}


def random_source(name: str, seed: int) -> torch.Generator:
    """One stream per family, so that adding a family changes no other."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)


def randomise(model: PreTrainedModel, source: torch.Generator) -> None:
    """Numbers large enough that every term of the forward shows in the logits."""
    for path, module in sorted(model.named_modules()):
        offset = 1.0 if "Norm" in type(module).__name__ and "Gemma" not in type(module).__name__ else 0.0
        for name, parameter in sorted(module.named_parameters(recurse=False)):
            noise = torch.randn(parameter.shape, generator=source)
            centred = parameter.dim() == 1
            parameter.data = noise * 0.1 + (offset if name == "weight" else 0.0) if centred else noise * 0.25


def make(name: str, folder: Path, seed: int = 0) -> torch.Tensor:
    """Writes the model directory of one family and returns token ids to run through it."""
    family, source = FAMILIES[name], random_source(name, seed)
    model = AutoModelForCausalLM.from_config(family.config(), dtype=torch.float32)
    randomise(model, source)
    model.tie_weights()
    folder.mkdir(parents=True, exist_ok=True)
    family.write(model, folder)
    return torch.randint(0, VOCAB, (BATCH, TOKENS), generator=source)


def load(folder: Path) -> PreTrainedModel:
    """As a user would, in float32 and with the attention that computes the matrix it reports."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()
