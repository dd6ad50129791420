"""The other side of a workload, in a process of its own: made once, then timed whenever it is asked.

    peer.py KIND NAME JSON

Reads lines from standard input: a number is how many rounds to time, and the answer is a line of JSON with their milliseconds; an empty line
asks for what it put out, and for the memory it had; the end of the input ends it. Everything else it may print goes to standard error.
"""

import json
import os
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import peers_forward
import peers_sae
import peers_train

KINDS = {
    "forward": peers_forward.FORWARD,
    "generate": peers_forward.GENERATE,
    "capture": peers_forward.CAPTURE,
    "train": peers_train.TRAIN,
    "sae": peers_sae.SAE,
    "matmul": {"torch": peers_sae.Products},
}


def milliseconds(work, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def peak_rss_mb() -> float:
    """The most memory this process had. `getrusage` would count what the process that started it had at that time."""
    with open("/proc/self/status") as status:
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return kilobytes * 1024 / 1e6


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    kind, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(options.pop("threads"))
    peer = KINDS[kind][name](**options)
    # A peer that times itself has a loop of its own around the work.
    timed = getattr(peer, "times", None) or (lambda rounds: milliseconds(peer.work, rounds))
    for line in sys.stdin:
        if line.strip():
            answers.write(json.dumps(timed(int(line))) + "\n")
        else:
            memory = peak_rss_mb()
            answers.write(json.dumps({"peak_rss_mb": memory} | peer.output()) + "\n")


if __name__ == "__main__":
    main()
