"""The two sides of a comparison: our commands, and peers that live in processes of their own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Failed(Exception):
    """A side did not do its work; the message has what it said."""


class Ours:
    """The release build."""

    def __init__(self, binary: Path, threads: int):
        self.binary = binary
        self.env = os.environ | {"RAYON_NUM_THREADS": str(threads)}

    def bench(self, *args) -> dict:
        """What `tenterhook bench ARGS --json` tells."""
        command = [str(self.binary), "bench", *map(str, args), "--json"]
        done = subprocess.run(command, check=False, env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)


class Peer:
    """A peer in a process of its own, see peer.py. It waits while others are timed."""

    def __init__(self, kind: str, name: str, options: dict, threads: int):
        self.name = name
        command = [sys.executable, str(HERE / "peer.py"), kind, name, json.dumps(options | {"threads": threads})]
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet(), text=True)

    def ask(self, line: str):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer, or that there is none, says it
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(answer)

    def time(self, rounds: int) -> list:
        """Milliseconds of so many rounds."""
        return self.ask(str(rounds))

    def output(self) -> dict:
        """What it put out, and the memory it had."""
        return self.ask("")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def milliseconds_of(command: list[str], rounds: int) -> list[float]:
    """How long a command takes, from its start to its end."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def quiet():
    """What peers say beside their answers is shown where somebody asked for it."""
    return None if os.environ.get("BENCH_VERBOSE") else subprocess.DEVNULL
