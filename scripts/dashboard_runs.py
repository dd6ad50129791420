"""Runs for the dashboard to show: made with the real binary, killed with -9, and doctored to be hostile."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from checks import Failure, run

CONFIG = """
[run]
name = "{name}"
dir = "runs"

[model]
kind = "gpt"
vocab = 32
context = 32
d_model = 48
n_heads = 4
n_layers = 2
d_mlp = 96

[data.train]
kind = "induction"
vocab = 32
block = 32
batch = 32

[data.val]
kind = "induction"
vocab = 32
block = 32
batch = 32
examples = 128

[train]
steps = {steps}
validate_every = 20
checkpoint_every = 50
grad_clip = 1.0

[[optimizer]]
kind = "adamw"
lr = {lr}

[schedule]
kind = "cosine"
warmup = {warmup}
"""

HOOKS = """
[[hooks]]
kind = "gradient_monitor"
log_frequency = 5
log_histogram = true

[[hooks]]
kind = "activation_stats"
points = ["*hook_resid_post", "*hook_attn_out", "*hook_mlp_out"]
every = 5

[[hooks]]
kind = "lr_monitor"

[[hooks]]
kind = "throughput"

[[hooks]]
kind = "capture"
points = ["blocks.*.attn.hook_pattern", "blocks.*.hook_resid_post"]
retention = "last"
every = {every}
"""

# What must stay text wherever it is shown.
HOSTILE = '<img src=x onerror="window.hacked=1"><b>bold</b>&lt;i&gt; %{y} $x$ <a href="javascript:window.hacked=1">link</a>'
# What the rules for names of runs let through.
ODD = "a&amp;b 100%{x} #1 'quoted' $y$ ünï"


@dataclass
class Run:
    """A run on the disk, as its files tell it."""

    folder: Path

    @property
    def record(self) -> dict:
        return json.loads((self.folder / "run.json").read_text())

    def rows(self) -> list[dict]:
        rows = []
        for line in (self.folder / "metrics.jsonl").read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # the last line of a run that goes on, or was killed
        return rows

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(row["step"], row[name]) for row in self.rows() if name in row]

    def matching(self, pattern: str) -> list[float]:
        """All values of the metrics that a pattern with one `*` matches."""
        start, end = pattern.split("*")
        names = re.compile(re.escape(start) + ".*" + re.escape(end))
        return [value for row in self.rows() for name, value in row.items() if names.fullmatch(name)]

    def histograms(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "histograms.jsonl").read_text().splitlines()]

    def receipts(self) -> dict[str, dict]:
        return {receipt["id"]: receipt for receipt in json.loads((self.folder / "receipts.json").read_text())}


@dataclass
class Lab:
    """A folder with runs in it."""

    binary: Path
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def config(self, name: str, steps: int, lr: float = 3e-3, hooks: str = HOOKS) -> Path:
        file = self.folder / f"{len(list(self.folder.glob('*.toml')))}.toml"
        text = CONFIG.format(name=name, steps=steps, lr=lr, warmup=min(20, steps // 3)) + hooks.format(every=max(1, steps // 2))
        file.write_text(text)
        return file

    def train(self, name: str, steps: int, lr: float = 3e-3, hooks: str = HOOKS) -> Run:
        run(self.binary, "train", self.config(name, steps, lr, hooks), cwd=self.folder)
        return Run(self.runs / name)

    def start(self, name: str, steps: int, *options: str) -> "Process":
        return Process([self.binary, "train", self.config(name, steps), *options], self.folder)

    def kill(self, name: str) -> Run:
        """A run that ends in its middle, by `kill -9`, after its first validation."""
        process = self.start(name, 100_000)
        killed = Run(self.runs / name)
        try:
            until(lambda: (killed.folder / "metrics.jsonl").exists() and killed.series("val/loss"), "a validation of the run to kill")
        finally:
            process.kill()
        return killed

    def doctor(self, run: Run, name: str) -> Run:
        """A copy in which every text that a stranger could have written is hostile."""
        copy = Run(self.runs / name)
        shutil.copytree(run.folder, copy.folder)
        shutil.rmtree(copy.folder / "captures")
        record = copy.record | {"id": name, "name": HOSTILE, "commit": HOSTILE, "parent": HOSTILE, "reason": HOSTILE}
        record["errors"] = [{"step": 3, "hook_id": HOSTILE, "event": HOSTILE, "point": HOSTILE, "error": HOSTILE}]
        record["hooks"][0] |= {"id": HOSTILE, "kind": HOSTILE, "matched": [HOSTILE]}
        (copy.folder / "run.json").write_text(json.dumps(record))
        (copy.folder / "config.toml").write_text(f"# {HOSTILE}\n" + (copy.folder / "config.toml").read_text())
        renamed = ({**row, HOSTILE: row.get("loss", 1.0), f"act/{HOSTILE}/std": 1.0, "act/plain/std": 2.0} for row in copy.rows())
        (copy.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
        return copy


    def lengthen(self, run: Run, name: str, steps: int) -> Run:
        """A copy with so many steps that no chart can have a point for each."""
        copy = Run(self.runs / name)
        shutil.copytree(run.folder, copy.folder)
        shutil.rmtree(copy.folder / "captures")
        (copy.folder / "run.json").write_text(json.dumps(copy.record | {"id": name, "name": name}))
        noise = random.Random(0)
        with (copy.folder / "metrics.jsonl").open("w") as log:
            for step in range(1, steps + 1):
                loss = 1 + 3 * math.exp(-5 * step / steps) + noise.random() / 2
                log.write(json.dumps({"step": step, "epoch": 0, "time": 1.7e9 + step / 50, "loss": loss, "val/loss": loss}) + "\n")
        return copy


class Process:
    """A program that goes on, and what it says."""

    def __init__(self, command: list, folder: Path):
        self.command = [str(word) for word in command]
        self.said = ""
        self.child = subprocess.Popen(self.command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        for line in self.child.stdout:
            self.said += line

    def find(self, pattern: str) -> str:
        """The first group of a pattern in what it says."""
        until(lambda: re.search(pattern, self.said) or self.child.poll() is not None, f"`{pattern}`")
        found = re.search(pattern, self.said)
        if not found:
            raise Failure(f"{self.command[1:]} did not say `{pattern}`: {self.said[-300:]}")
        return found.group(1)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def interrupt(self) -> int:
        """Ends it in good order."""
        if self.child.poll() is None:
            os.kill(self.child.pid, signal.SIGINT)
        return self.child.wait(timeout=60)


def until(condition, what: str, seconds: float = 60.0):
    """Waits for a condition; the time is only there to end a wait in vain."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise Failure(f"waited in vain for {what}")
