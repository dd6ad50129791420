"""Forwards and generation with transformers, TransformerLens and nnsight."""

import os
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from inputs import CLASSIC_POINTS, STRENGTH, batch_ids, steering_vector


def load(model: str, attention: str):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=attention).eval()


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Forward:
    """A forward of `batch` times `seq` tokens. `task` is none, residual, all or steer."""

    def __init__(self, model: str, batch: int, seq: int, task: str, block: int, logits: str | None = None):
        self.path, self.task, self.block, self.save_to = model, task, block, logits
        self.kept: dict[str, Tensor] = {}
        self.open()
        self.ids = batch_ids(batch, seq, self.vocab)
        self.vector = STRENGTH * steering_vector(self.width)
        self.attach()

    def open(self) -> None:
        raise NotImplementedError

    def attach(self) -> None:
        pass

    def run(self) -> Tensor:
        raise NotImplementedError

    def work(self) -> None:
        with torch.inference_mode():
            self.run()
        # What a round gave is let go in it, as on the other side.
        self.kept = {}

    def output(self) -> dict:
        with torch.inference_mode():
            logits = self.run()
        if self.save_to:
            save_file({"logits": logits.contiguous().clone()}, self.save_to)
        return {"points": len(self.kept), "bytes": bytes_of(self.kept.values())}


class Transformers(Forward):
    """Plain transformers, with forward hooks of PyTorch."""

    attention = "sdpa"

    def open(self) -> None:
        self.model = load(self.path, self.attention)
        self.vocab, self.width = self.model.config.vocab_size, self.model.config.n_embd

    def attach(self) -> None:
        blocks = self.model.transformer.h
        if self.task == "residual":
            for i, block in enumerate(blocks):
                block.register_forward_hook(lambda _module, _inputs, out, i=i: self.keep(i, out))
        if self.task == "steer":
            blocks[self.block].register_forward_hook(lambda _module, _inputs, out: self.steered(out))

    def keep(self, i: int, out) -> None:
        self.kept[f"blocks.{i}.hook_resid_post"] = out[0] if isinstance(out, tuple) else out

    def steered(self, out):
        if isinstance(out, tuple):
            return (out[0] + self.vector, *out[1:])
        return out + self.vector

    def run(self) -> Tensor:
        return self.model(self.ids, use_cache=False).logits


class TransformersEager(Transformers):
    attention = "eager"


def is_residual(name: str) -> bool:
    return name.endswith("hook_resid_post")


@cache
def is_classic(name: str) -> bool:
    return any(fnmatchcase(name, point) for point in CLASSIC_POINTS)


class TransformerLens(Forward):
    """TransformerLens 4, whose bridge runs the modules of transformers."""

    def open(self) -> None:
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        model = load(self.path, "eager")
        self.vocab, self.width = model.config.vocab_size, model.config.n_embd
        self.bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config, dtype=torch.float32)

    def run(self) -> Tensor:
        if self.task == "steer":
            point = f"blocks.{self.block}.hook_resid_post"
            return self.bridge.run_with_hooks(self.ids, fwd_hooks=[(point, lambda x, hook: x + self.vector)])
        if self.task == "none":
            return self.bridge(self.ids)
        logits, kept = self.bridge.run_with_cache(self.ids, names_filter=is_residual if self.task == "residual" else is_classic)
        self.kept = dict(kept.items())
        return logits


class NNsight(Forward):
    """nnsight, tracing the modules of transformers."""

    def open(self) -> None:
        from nnsight import NNsight as Envoy

        model = load(self.path, "sdpa")
        self.vocab, self.width = model.config.vocab_size, model.config.n_embd
        self.model = Envoy(model)

    def run(self) -> Tensor:
        blocks, kept, vector = self.model.transformer.h, {}, self.vector
        with self.model.trace(self.ids, use_cache=False):
            if self.task == "steer":
                stream = blocks[self.block].output
                if isinstance(stream, tuple):
                    blocks[self.block].output = (stream[0] + vector, *stream[1:])
                else:
                    blocks[self.block].output = stream + vector
            if self.task == "residual":
                streams = [block.output for block in blocks].save()
            logits = self.model.lm_head.output.save()
        if self.task == "residual":
            kept = {str(i): stream[0] if isinstance(stream, tuple) else stream for i, stream in enumerate(streams)}
        self.kept = kept
        return logits


class Generate(Transformers):
    """Greedy generation with transformers and its KV cache, with or without a steering hook."""

    def __init__(self, model: str, prompt: int, new: int, task: str, block: int):
        self.new = new
        super().__init__(model, 1, prompt, task, block)
        self.model.generation_config.eos_token_id = None

    def run(self) -> Tensor:
        mask = torch.ones_like(self.ids)
        options = dict(max_new_tokens=self.new, do_sample=False, pad_token_id=0, use_cache=True)
        return self.model.generate(self.ids, attention_mask=mask, **options)

    def output(self) -> dict:
        with torch.inference_mode():
            return {"new_tokens": self.run()[0, self.ids.shape[1] :].tolist()}


class GenerateEager(Generate):
    attention = "eager"


class CaptureToDisk(Transformers):
    """The residual streams of many sequences to the disk: forward hooks, and a safetensors file per batch."""

    def __init__(self, model: str, sequences: int, seq: int, batch: int, folder: str):
        super().__init__(model, sequences, seq, "residual", 0)
        self.batch, self.folder = batch, Path(folder)
        self.folder.mkdir(exist_ok=True)

    def work(self) -> None:
        with torch.inference_mode():
            for i, ids in enumerate(self.ids.split(self.batch)):
                self.model(ids, use_cache=False)
                path = self.folder / f"{i}.safetensors"
                save_file({name: stream.contiguous() for name, stream in self.kept.items()}, path)
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

    def output(self) -> dict:
        files = list(self.folder.iterdir())
        return {"bytes": sum(file.stat().st_size for file in files)}


FORWARD = {
    "transformers": Transformers,
    "transformers eager": TransformersEager,
    "TransformerLens": TransformerLens,
    "nnsight": NNsight,
}
GENERATE = {"transformers": Generate, "transformers eager": GenerateEager}
CAPTURE = {"transformers": CaptureToDisk}
