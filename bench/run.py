#!/usr/bin/env python
"""Measures Tenterhook and its peers side by side and writes what came of it. `scripts/bench` builds what it needs and calls it.

    run.py TENTERHOOK [--native TENTERHOOK] --out BENCHMARKS.md --raw RESULTS.json [--quick] [--only WORD ...]

Every workload is run by all sides alternately, several rounds in one go, with the same weights, inputs and number of threads; every side warms up
first, and their outputs are compared. `--only` takes the workloads that have one of these words in their names.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import report
from sides import Failed, Ours, Peer, milliseconds_of
from workloads import Workload, all_of

THREADS = 2
START_UP = "start-up"
DEFAULT = report.DEFAULT


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fastest(workload: Workload, names: list[str]) -> Peer:
    """The quickest of several peers that do the same; the others are closed."""
    best, best_time = None, float("inf")
    for name in names:
        peer = Peer(workload.kind, name, workload.options, THREADS)
        peer.time(workload.warmup)
        if len(names) == 1:
            return peer
        time = statistics.median(peer.time(max(2, workload.repeat)))
        if time < best_time:
            peer, best, best_time = best, peer, time
        if peer:
            peer.close()
    return best


def measure(workload: Workload, builds: dict[str, Ours], rounds: int, folder: Path) -> dict:
    """All rounds of a workload: our builds, then every peer, then ours again."""
    # Before peers are made, which takes longer: what they need of us, and whether it works at all.
    logits = ["--logits", folder / "ours.safetensors"] if workload.kind == "forward" else []
    for ours in builds.values():
        ours.bench(*workload.ours, *logits, "--repeat", 1, "--warmup", 0)
    peers = {family: fastest(workload, names) for family, names in workload.peers.items()}
    repeat = ["--repeat", workload.repeat, "--warmup", workload.warmup]
    told = {build: [] for build in builds}
    times = {family: [] for family in peers}
    try:
        for _ in range(rounds):
            for build, ours in builds.items():
                told[build].append(ours.bench(*workload.ours, *repeat))
            for family, peer in peers.items():
                times[family].append(statistics.median(peer.time(workload.repeat)))
        result = {"name": workload.name, "builds": {build: summary(each) for build, each in told.items()}, "peers": {}}
        for family, peer in peers.items():
            output = peer.output()
            compared = [workload.agree(each[0], output, folder) for each in told.values()]
            # What differs is what to tell; otherwise all say the same.
            text, well = next((one for one in compared if not one[1]), compared[0])
            result["peers"][family] = {
                "name": peer.name,
                "ms": times[family],
                "peak_rss_mb": output["peak_rss_mb"],
                "agreement": text,
                "well": well,
            }
    finally:
        for peer in peers.values():
            peer.close()
    if workload.products:
        products(workload, builds, rounds, result)
    if workload.overhead_repeat:
        for build, ours in builds.items():
            found = ours.bench(*workload.ours, "--overhead", "--repeat", workload.overhead_repeat, "--warmup", 1)
            result["builds"][build]["overhead"] = found["overhead"]
    return result


def summary(told: list[dict]) -> dict:
    """What one of our builds told in all rounds."""
    return {
        "ms": [one["median_ms"] for one in told],
        "peak_rss_mb": max(one["peak_rss_mb"] or 0 for one in told),
        "tokens_per_s": statistics.median(one["tokens_per_s"] for one in told),
        "gflops": statistics.median(one["gflops"] for one in told) if told[0]["gflops"] else None,
    }


def products(workload: Workload, builds: dict[str, Ours], rounds: int, result: dict) -> None:
    """The matrix products of a workload alone, ours and PyTorch's."""
    shapes = builds[DEFAULT].bench("matmul", *workload.products, "--repeat", 1, "--warmup", 1)["products"]
    peer = Peer("matmul", "torch", {"products": shapes}, THREADS)
    peer.time(1)
    found = {build: [] for build in builds}
    theirs = []
    for _ in range(min(rounds, 3)):
        for build, ours in builds.items():
            told = ours.bench("matmul", *workload.products, "--repeat", 3, "--warmup", 1)
            found[build].append((told["best_gflops"], told["limit_gflops"]))
        timed = [(one["flops"], one["times"], statistics.median(one["ms"])) for one in peer.time(3)]
        best = max(flops / ms / 1e6 for flops, _, ms in timed)
        theirs.append((best, sum(f * n for f, n, _ in timed) / sum(ms * n for _, n, ms in timed) / 1e6))
    peer.close()
    for build, pairs in found.items():
        result["builds"][build]["matmul"] = best_and_limit(pairs)
    result["torch_matmul"] = best_and_limit(theirs)


def best_and_limit(pairs: list[tuple[float, float]]) -> dict:
    best, limit = zip(*pairs)
    return {"best": statistics.median(best), "limit": statistics.median(limit)}


def start_up(builds: dict[str, Ours], rounds: int) -> dict:
    """From the start of a process to its end, when there is nothing to do."""
    times_of = {build: [] for build in builds}
    peers = {"import torch": [], "import torch, transformers": []}
    for _ in range(rounds):
        for build, ours in builds.items():
            times_of[build] += milliseconds_of([str(ours.binary), "--version"], 1)
        for code, times in peers.items():
            times += milliseconds_of([sys.executable, "-c", code], 1)
    others = {
        code: {"name": f"python -c '{code}'", "ms": times, "peak_rss_mb": None, "agreement": "", "well": True}
        for code, times in peers.items()
    }
    nothing = {"peak_rss_mb": None, "tokens_per_s": None, "gflops": None}
    return {"name": START_UP, "builds": {build: {"ms": ms} | nothing for build, ms in times_of.items()}, "peers": others}


def is_chosen(name: str, words: list[str]) -> bool:
    return not words or any(word in name for word in words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--native", type=Path, help="the same program built for this CPU alone, to be measured in the same rounds")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and 3 rounds: a few minutes")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the benchmark itself")
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 7)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tenterhook" / "bench"
    builds = {DEFAULT: Ours(args.binary, THREADS)}
    if args.native:
        builds["native"] = Ours(args.native, THREADS)
    results, failures = [], []
    about = report.about(args, rounds, THREADS)

    def keep(result: dict) -> None:
        """Written at once: a run takes long, and may be cut off."""
        results.append(result)
        args.raw.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
        args.out.write_text(report.page(about, results))
        say(report.line(result))

    with tempfile.TemporaryDirectory() as folder:
        workloads = all_of(Path(folder), cache, args.quick, args.tiny)
        for workload in (one for one in workloads if is_chosen(one.name, args.only)):
            say(f"{workload.name} ...")
            try:
                keep(measure(workload, builds, rounds, Path(folder)))
            except Failed as error:
                failures.append(f"{workload.name}: {error}")
                say(failures[-1])
        if is_chosen(START_UP, args.only):
            keep(start_up(builds, rounds))
    print(report.table(results))
    for result in results:
        failures += [f"{result['name']}: {p['name']}: {p['agreement']}" for p in result["peers"].values() if not p["well"]]
    for failure in failures:
        say(f"FAILED {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
