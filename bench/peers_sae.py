"""A TopK autoencoder in plain PyTorch, and PyTorch's matrix products."""

import json
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from inputs import activations

BATCHES = 4


class TopK:
    """The training step of `tenterhook sae train --arch topk`: Adam, clipping, and latents chosen by what they add to the output.

    That is the pre-activation times the norm of the decoder's row. The norm decides who is chosen and nothing else: it would be divided out again
    behind the choice, so it is left out there, and has no gradient.
    """

    def __init__(self, d_in: int, d_sae: int, k: int, batch: int, start: str, clip: float = 1.0):
        self.k, self.batch, self.clip = k, batch, clip
        self.data = activations(BATCHES * batch * d_in).view(-1, d_in)
        weights = load_file(Path(start) / "sae_weights.safetensors")
        # Saved autoencoders have decoder rows of norm 1, with their norms in the encoder; training begins with other norms.
        about = json.loads((Path(start) / "cfg.json").read_text())["metadata"]["training_architecture_details"]
        weights["W_dec"] *= about["decoder_init_norm"]
        weights["W_enc"] /= about["decoder_init_norm"]
        self.params = {name: nn.Parameter(weights[name].clone()) for name in ("W_enc", "b_enc", "W_dec", "b_dec")}
        assert self.params["W_enc"].shape == (d_in, d_sae)
        self.optimizer = torch.optim.Adam(self.params.values(), lr=3e-4, betas=(0.9, 0.999))
        self.losses: list[float] = []

    def decode(self, before: Tensor, places: Tensor, values: Tensor) -> Tensor:
        return torch.zeros_like(before).scatter(-1, places, values) @ self.params["W_dec"]

    def work(self) -> None:
        at = len(self.losses) % BATCHES * self.batch
        x = self.data[at : at + self.batch]
        before = (x - self.params["b_dec"]) @ self.params["W_enc"] + self.params["b_enc"]
        with torch.no_grad():
            places = (before * self.params["W_dec"].norm(dim=-1)).topk(self.k, dim=-1).indices
        values = before.gather(-1, places).relu()
        output = self.decode(before, places, values) + self.params["b_dec"]
        loss = (output - x).pow(2).sum(-1).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.params.values(), self.clip)
        self.optimizer.step()
        self.losses.append(loss.item())

    def output(self) -> dict:
        return {"losses": self.losses}


class TopKSparse(TopK):
    """The same with a decoder that gathers the rows of the active latents."""

    def decode(self, before: Tensor, places: Tensor, values: Tensor) -> Tensor:
        return nn.functional.embedding_bag(places, self.params["W_dec"], per_sample_weights=values, mode="sum")


class Products:
    """The products of `tenterhook bench matmul`, with `torch.mm`."""

    def __init__(self, products: list[dict]):
        self.products = products

    def times(self, rounds: int) -> list[dict]:
        return [self.timed(product, rounds) for product in self.products]

    @staticmethod
    def timed(product: dict, rounds: int) -> dict:
        m, k, n = product["shape"]
        a = torch.full((k, m), 0.5).t() if product["a_transposed"] else torch.full((m, k), 0.5)
        b = torch.full((n, k), 0.25).t() if product["b_transposed"] else torch.full((k, n), 0.25)
        out, times = torch.empty(m, n), []
        with torch.inference_mode():
            for _ in range(rounds):
                start = time.perf_counter()
                torch.mm(a, b, out=out)
                times.append((time.perf_counter() - start) * 1e3)
        return {"name": product["name"], "times": product["times"], "flops": 2 * m * k * n, "ms": times}

    def output(self) -> dict:
        return {}


SAE = {"PyTorch": TopK, "PyTorch, embedding_bag": TopKSparse}
