#!/usr/bin/env python
"""How training grows with the number of processes: `scripts/scaling` builds with MPI and calls it.

    ranks.py TENTERHOOK [--steps N] [--rounds N]

Every way to train the same model takes its turn in every round: one process with one thread and with two, two processes with one thread each. With
strong scaling the batch stays as it is, with weak scaling every process has a batch of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import report
from inputs import D384_STEP, make_model

BATCH = 8


@dataclass(frozen=True)
class Way:
    """So many processes with so many threads each, and the batch of all of them."""

    ranks: int
    threads: int
    batch: int

    def name(self) -> str:
        plural = "process" if self.ranks == 1 else "processes"
        return f"{self.ranks} {plural}, {self.threads} thread{'s' if self.threads > 1 else ''}, batch {self.batch}"


WAYS = [Way(1, 1, BATCH // 2), Way(1, 1, BATCH), Way(1, 2, BATCH), Way(2, 1, BATCH)]


def run(binary: Path, config: Path, folder: Path, way: Way, steps: int) -> dict:
    """The medians of a run's times per step, without its first two."""
    runs = Path(tempfile.mkdtemp(dir=folder))
    words = [str(binary), "train", str(config), "-q", "--runs-dir", str(runs), "--set", f"train.steps={steps}"]
    words += ["--set", f"train.threads={way.threads}", "--set", f"data.train.batch={way.batch}", "--set", "train.keep_checkpoints=1"]
    # Each process on a core of its own, as `mpirun` does it where there are enough.
    launcher = ["mpirun", "--bind-to", "core", "-n", str(way.ranks)] if way.ranks > 1 else []
    free = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run(launcher + words, check=True, env=os.environ | free)
    (log,) = runs.glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows = [row for row in rows if "time/step_s" in row][2:]
    middle = lambda key: statistics.median(row.get(key, 0.0) for row in rows)
    return {key: middle(f"time/{key}") for key in ("step_s", "ranks_sum_s", "ranks_wait_s")} | {"loss": rows[-1]["loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tenterhook" / "bench"
    model = make_model(cache / D384_STEP.name, D384_STEP.sizes)
    found = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        config = D384_STEP.write(Path(folder), model, steps=args.steps)
        for _ in range(args.rounds):
            for way, each in found.items():
                each.append(run(args.binary.resolve(), config, Path(folder), way, args.steps))
    rows = []
    for way, each in found.items():
        middle = {key: statistics.median(one[key] for one in each) for key in each[0]}
        tokens = way.batch * D384_STEP.seq / middle["step_s"]
        share = lambda key: f"{100 * middle[key] / middle['step_s']:.1f}%" if way.ranks > 1 else ""
        rows.append([way.name(), f"{1e3 * middle['step_s']:.0f} ms", f"{tokens:.0f}", share("ranks_sum_s"), share("ranks_wait_s"), f"{middle['loss']:.6f}"])
    head = ["way", "step", "tokens/s", "sums", "waiting", "last loss"]
    print(f"{report.cpu()}, 6 layers d=384, {D384_STEP.seq} tokens, {args.rounds} rounds of {args.steps} steps\n")
    print(report.grid(head, rows))
    speed = lambda way: way.batch / statistics.median(one["step_s"] for one in found[way])
    half, one, threads, ranks = WAYS
    print(f"\ntwo processes reach {100 * speed(ranks) / speed(threads):.0f}% of one with two threads")
    print(f"strong scaling from one process with one thread: {speed(ranks) / speed(one):.2f}x; weak scaling: {speed(ranks) / speed(half):.2f}x")


if __name__ == "__main__":
    main()
