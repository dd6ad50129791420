"""One forward of every family in plain PyTorch, each point of it a tensor in the autograd graph.

An independent account of what the points mean: it borrows the linear layers, activations and rotary
angles of the Hugging Face modules and spells out everything in between. Whoever calls it compares its
logits and parameter gradients with transformers', which leaves little room for a wrong point in between.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Layout:
    """Where a family keeps its parts, as attribute names."""

    base: str = "model"
    embed: str = "embed_tokens"
    blocks: str = "layers"
    ln_final: str = "norm"
    ln1: str = "input_layernorm"
    ln2: str = "post_attention_layernorm"
    ln1_post: str | None = None
    ln2_post: str | None = None
    attn: str = "self_attn"
    attn_out: str = "o_proj"


LAYOUTS = {
    "gpt2": Layout("transformer", "wte", "h", "ln_f", "ln_1", "ln_2", attn="attn", attn_out="c_proj"),
    "gpt_neox": Layout("gpt_neox", "embed_in", ln_final="final_layer_norm", attn="attention", attn_out="dense"),
    "gemma2": Layout(
        ln2="pre_feedforward_layernorm",
        ln1_post="post_attention_layernorm",
        ln2_post="post_feedforward_layernorm",
    ),
}


class Trace:
    """Runs a model and keeps every point; `gradients` then holds the loss gradient at each of them."""

    def __init__(self, model: PreTrainedModel, ids: Tensor):
        self.model, self.config = model, model.config
        self.kind = model.config.model_type
        self.layout = LAYOUTS.get(self.kind, Layout())
        self.base = getattr(model, self.layout.base)
        self.heads = self.config.num_attention_heads
        self.kv_heads = getattr(self.config, "num_key_value_heads", None) or self.heads
        self.d_head = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
        self.points: dict[str, Tensor] = {}
        self.logits = self.forward(ids)
        self.loss = F.cross_entropy(self.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def gradients(self) -> dict[str, Tensor]:
        """Runs the backward; parameters receive their gradients as well."""
        self.loss.backward()
        return {name: point.grad for name, point in self.points.items() if point.retains_grad}

    def tap(self, name: str, x: Tensor) -> Tensor:
        """Names a tensor. A fresh view per name, so that its gradient is that of its own readers alone."""
        x = x.view_as(x)
        x.retain_grad()
        self.points[name] = x
        return x

    def forward(self, ids: Tensor) -> Tensor:
        self.positions = torch.arange(ids.shape[1])[None]
        x = F.embedding(ids, getattr(self.base, self.layout.embed).weight)
        if self.kind == "gemma2":
            x = x * math.sqrt(self.config.hidden_size)
        x = self.tap("hook_embed", x)
        if self.kind == "gpt2":
            x = x + self.tap("hook_pos_embed", self.base.wpe(self.positions).expand_as(x))
        for i, block in enumerate(getattr(self.base, self.layout.blocks)):
            x = self.block(i, block, x)
        logits = self.model.lm_head(self.norm("ln_final", getattr(self.base, self.layout.ln_final), x))
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def block(self, i: int, block: nn.Module, x: Tensor) -> Tensor:
        at, layout = f"blocks.{i}", self.layout
        x = self.tap(f"{at}.hook_resid_pre", x)
        attn_out = self.attention(i, block, x)
        if layout.ln1_post:
            attn_out = self.norm(f"{at}.ln1_post", getattr(block, layout.ln1_post), attn_out)
        attn_out = self.tap(f"{at}.hook_attn_out", attn_out)
        parallel = getattr(self.config, "use_parallel_residual", False)
        mid = x if parallel else self.tap(f"{at}.hook_resid_mid", x + attn_out)
        mlp_out = self.mlp(at, block, self.tap(f"{at}.hook_mlp_in", mid))
        if layout.ln2_post:
            mlp_out = self.norm(f"{at}.ln2_post", getattr(block, layout.ln2_post), mlp_out)
        mlp_out = self.tap(f"{at}.hook_mlp_out", mlp_out)
        return self.tap(f"{at}.hook_resid_post", mid + mlp_out + attn_out if parallel else mid + mlp_out)

    def norm(self, at: str, module: nn.Module, x: Tensor) -> Tensor:
        layer_norm = isinstance(module, nn.LayerNorm)
        eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
        if layer_norm:
            x = x - x.mean(-1, keepdim=True)
        scale = self.tap(f"{at}.hook_scale", (x.pow(2).mean(-1, keepdim=True) + eps).sqrt())
        x = self.tap(f"{at}.hook_normalized", x / scale)
        x = x * (1 + module.weight if self.kind == "gemma2" else module.weight)
        return self.tap(f"{at}.hook_out", x + module.bias if layer_norm else x)

    def attention(self, i: int, block: nn.Module, resid: Tensor) -> Tensor:
        at, module = f"blocks.{i}.attn", getattr(block, self.layout.attn)
        q, k, v = self.split_qkv(module, self.norm(f"blocks.{i}.ln1", getattr(block, self.layout.ln1), resid))
        q, k, v = (self.tap(f"{at}.hook_{name}", x) for name, x in (("q", q), ("k", k), ("v", v)))
        if self.kind == "qwen3":
            q, k = self.head_norm(module.q_norm, q), self.head_norm(module.k_norm, k)
        if self.kind != "gpt2":
            q, k = (self.tap(f"{at}.hook_rot_{name}", self.rotate(x)) for name, x in (("q", q), ("k", k)))
        k, v = (x.repeat_interleave(self.heads // self.kv_heads, dim=2) for x in (k, v))

        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores / math.sqrt(getattr(self.config, "query_pre_attn_scalar", self.d_head))
        cap = getattr(self.config, "attn_logit_softcapping", None)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        scores = self.tap(f"{at}.hook_attn_scores", scores.masked_fill(~self.visible(i), -math.inf))
        pattern = self.tap(f"{at}.hook_pattern", scores.softmax(-1))
        z = self.tap(f"{at}.hook_z", torch.einsum("bhqk,bkhd->bqhd", pattern, v))

        output = getattr(module, self.layout.attn_out)
        out = self.tap(f"{at}.hook_out", output(z.flatten(2)))
        self.points[f"{at}.hook_result"] = self.per_head(output, z)
        return out

    def split_qkv(self, module: nn.Module, x: Tensor) -> list[Tensor]:
        """Queries, keys and values as `[batch, pos, head, d_head]`, whichever way they are fused."""
        heads, kv_heads = self.heads, self.kv_heads
        if self.kind == "gpt2":
            parts = module.c_attn(x).chunk(3, -1)
        elif self.kind == "gpt_neox":  # interleaved: q, k, v of head 0, then of head 1, ...
            parts = [p.flatten(2) for p in module.query_key_value(x).unflatten(-1, (heads, 3, -1)).unbind(3)]
        elif self.kind == "phi3":
            parts = module.qkv_proj(x).split([n * self.d_head for n in (heads, kv_heads, kv_heads)], -1)
        else:
            parts = [module.q_proj(x), module.k_proj(x), module.v_proj(x)]
        return [part.unflatten(-1, (-1, self.d_head)) for part in parts]

    @staticmethod
    def head_norm(module: nn.Module, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon) * module.weight

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate-half over the first dimensions of each head; the rest passes unchanged."""
        cos, sin = (angle[:, :, None] for angle in self.base.rotary_emb(x, self.positions))
        turned, passed = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
        first, second = turned.chunk(2, -1)
        return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, passed], -1)

    def visible(self, i: int) -> Tensor:
        """`[query, key]`: causal, and a window of w sees w keys, its own included."""
        query, key = self.positions.T, self.positions
        seen = key <= query
        window = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        if window is None or (kinds and kinds[i] != "sliding_attention"):
            return seen
        return seen & (query - key < window)

    def per_head(self, output: nn.Module, z: Tensor) -> Tensor:
        """What each head adds to the output; their sum and the bias are the output itself."""
        weight = output.weight if isinstance(output, Conv1D) else output.weight.T
        return torch.einsum("bphd,hdm->bphm", z, weight.unflatten(0, (self.heads, self.d_head)))

    def mlp(self, at: str, block: nn.Module, x: Tensor) -> Tensor:
        module, tap = block.mlp, self.tap
        x = self.norm(f"{at}.ln2", getattr(block, self.layout.ln2), x)
        if self.kind in ("gpt2", "gpt_neox"):
            into, out = (("c_fc", "c_proj"), ("dense_h_to_4h", "dense_4h_to_h"))[self.kind == "gpt_neox"]
            post = module.act(tap(f"{at}.mlp.hook_pre", getattr(module, into)(x)))
            return tap(f"{at}.mlp.hook_out", getattr(module, out)(tap(f"{at}.mlp.hook_post", post)))
        if self.kind == "phi3":
            gate, up = module.gate_up_proj(x).chunk(2, -1)
            act = module.activation_fn
        else:
            gate, up, act = module.gate_proj(x), module.up_proj(x), module.act_fn
        post = act(tap(f"{at}.mlp.hook_pre", gate)) * tap(f"{at}.mlp.hook_pre_linear", up)
        return tap(f"{at}.mlp.hook_out", module.down_proj(tap(f"{at}.mlp.hook_post", post)))
