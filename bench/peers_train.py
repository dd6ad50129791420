"""Training steps in PyTorch, compiled PyTorch and Lightning: the same model, data, optimizer and clipping, and the same things logged."""

import json
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from inputs import Sizes, Training
from peers_forward import load


def make_optimizer(model: nn.Module, run: Training) -> torch.optim.Optimizer:
    """Norms and biases, which have one axis, do not decay."""
    parameters = list(model.parameters())
    groups = [
        dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=run.weight_decay),
        dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(groups, lr=run.lr, betas=(0.9, 0.999), eps=1e-8)


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(inputs, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class Steps:
    """What all of them share. `hooks` logs gradient norms, learning rates and the loss at every step, as JSON lines."""

    def __init__(self, model: str, tokens: str, run: dict, hooks: bool, attention: str = "sdpa"):
        self.settings = Training(**(run | {"sizes": Sizes(**run["sizes"])}))
        self.tokens = np.fromfile(tokens, dtype=np.uint16)
        self.model = load(model, attention).train()
        self.hooks, self.step, self.losses = hooks, 0, []
        self.log = open(Path(tempfile.mkdtemp()) / "log.jsonl", "w", buffering=1)
        self.prepare()

    def prepare(self) -> None:
        pass

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self.settings.batch_of(self.tokens, self.step)
        self.step += 1
        return batch

    def output(self) -> dict:
        return {"losses": self.losses}


class PyTorch(Steps):
    """A plain loop."""

    def prepare(self) -> None:
        self.optimizer = make_optimizer(self.model, self.settings)
        self.forward = loss_of

    def work(self) -> None:
        inputs, targets = self.next_batch()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(self.model, inputs, targets)
        loss.backward()
        if self.hooks:
            row = {f"grad_norm/{name}": p.grad.norm().item() for name, p in self.model.named_parameters()}
        total = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.losses.append(loss.item())
        if self.hooks:
            row |= {"loss": self.losses[-1], "grad_norm": total.item(), "step": self.step}
            row |= {f"lr/{i}": group["lr"] for i, group in enumerate(self.optimizer.param_groups)}
            self.log.write(json.dumps(row) + "\n")


class PyTorchEager(PyTorch):
    """The same with transformers' attention spelt out."""

    def __init__(self, **options):
        super().__init__(**options, attention="eager")


class Compiled(PyTorch):
    """The same with forward, loss and backward compiled."""

    def prepare(self) -> None:
        super().prepare()
        self.forward = torch.compile(loss_of)


class Lightning(Steps):
    """Lightning's trainer; its callbacks log the same."""

    def prepare(self) -> None:
        import lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self.lightning = lightning
        self.module = module_of(self, lightning)

    def times(self, rounds: int) -> list[float]:
        watch = stopwatch(self.lightning)
        folder = tempfile.mkdtemp()
        callbacks, logger = [watch], False
        if self.hooks:
            from lightning.pytorch.callbacks import LearningRateMonitor
            from lightning.pytorch.loggers import CSVLogger

            callbacks.append(LearningRateMonitor(logging_interval="step"))
            logger = CSVLogger(folder, flush_logs_every_n_steps=1)
        trainer = self.lightning.Trainer(
            accelerator="cpu",
            max_steps=rounds + 1,
            gradient_clip_val=self.settings.clip,
            logger=logger,
            callbacks=callbacks,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(self.module, torch.utils.data.DataLoader(Examples(self), batch_size=None))
        return [(b - a) * 1e3 for a, b in zip(watch.starts, watch.starts[1:])][:rounds]


class Examples(torch.utils.data.IterableDataset):
    """The batches of a run, one after the other."""

    def __init__(self, steps: Steps):
        self.steps = steps

    def __iter__(self):
        while True:
            yield self.steps.next_batch()


def module_of(steps: Steps, lightning):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = steps.model
            self.optimizer = make_optimizer(self.model, steps.settings)

        def training_step(self, batch, _index):
            loss = loss_of(self.model, *batch)
            steps.losses.append(loss.item())
            if steps.hooks:
                self.log("loss", loss, on_step=True)
            return loss

        def on_before_optimizer_step(self, _optimizer):
            if steps.hooks:
                self.log_dict({f"grad_norm/{name}": p.grad.norm() for name, p in self.model.named_parameters()})

        def configure_optimizers(self):
            return self.optimizer

    return Module()


def stopwatch(lightning):
    class Stopwatch(lightning.Callback):
        def __init__(self):
            self.starts = []

        def on_train_batch_start(self, *_):
            self.starts.append(time.perf_counter())

    return Stopwatch()


TRAIN = {"PyTorch": PyTorch, "PyTorch, eager attention": PyTorchEager, "torch.compile": Compiled, "Lightning": Lightning}
