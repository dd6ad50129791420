"""What was measured, as text: a line per workload, tables, and the page BENCHMARKS.md.

report.py RESULTS.json ... > BENCHMARKS.md    one page of several runs; of a workload that is in more than one, the last
"""

import argparse
import datetime
import json
import platform
import statistics
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers", "transformer-lens", "nnsight", "lightning")


def cpu() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def about(args, rounds: int, threads: int) -> dict:
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "system": f"{platform.system()} {platform.release()}",
        "threads": threads,
        "rounds": rounds,
        "build": args.build,
        "note": "",
        "made_by": "scripts/bench" + (" --quick" if args.quick else "") + (" --only ..." if args.only else ""),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def ratios(result: dict, peer: dict) -> list[float]:
    return [theirs / ours for ours, theirs in zip(result["ms"], peer["ms"])]


def ms(times: list[float]) -> str:
    middle = statistics.median(times)
    return f"{middle:.0f} ms" if middle >= 100 else f"{middle:.1f} ms"


def line(result: dict) -> str:
    peers = ", ".join(f"{p['name']} {ms(p['ms'])} ({statistics.median(ratios(result, p)):.2f}x)" for p in result["peers"].values())
    share = f", {100 * result['gflops'] / result['matmul']['best']:.0f}% of matmul" if "matmul" in result else ""
    return f"  {ms(result['ms'])}{share}; {peers}"


def grid(head: list[str], rows: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def memory(megabytes: float | None) -> str:
    return f"{megabytes:.0f} MB" if megabytes else ""


def table(results: list[dict]) -> str:
    """Every workload against every peer."""
    rows = []
    for result in results:
        for peer in result["peers"].values():
            found = sorted(ratios(result, peer))
            rows.append(
                [
                    result["name"],
                    ms(result["ms"]),
                    peer["name"],
                    ms(peer["ms"]),
                    f"**{statistics.median(found):.2f}x** ({found[0]:.2f} to {found[-1]:.2f})",
                    memory(result["peak_rss_mb"]),
                    memory(peer["peak_rss_mb"]),
                    peer["agreement"],
                ]
            )
    return grid(["workload", "Tenterhook", "peer", "its time", "faster", "our memory", "its memory", "outputs"], rows)


def limits(results: list[dict]) -> str:
    """What the workloads reach of the machine's matrix products."""
    rows = []
    for result in results:
        if "matmul" not in result:
            continue
        m, speed = result["matmul"], result["gflops"]
        rows.append(
            [
                result["name"],
                f"{speed:.0f}",
                f"{m['best']:.0f}",
                f"{100 * speed / m['best']:.0f}%",
                f"{m['limit']:.0f}",
                f"{100 * speed / m['limit']:.0f}%",
                f"{m['torch_best']:.0f}",
                f"{m['torch_limit']:.0f}",
            ]
        )
    head = ["workload", "GFLOP/s", "best product", "share", "all its products", "share", "PyTorch's best", "PyTorch's all"]
    return grid(head, rows)


PAGE = """\
# Benchmarks

Tenterhook and its peers on the same machine, each workload in one go. Made by `{made_by}`; [docs/benchmarks.md](docs/benchmarks.md) says how to read and repeat it.

- CPU: {cpu}, {threads} threads on both sides, f32; {system}
- date: {date}; build: {build}; {rounds} rounds, alternating
- Python {python}, {versions}
{note}
## Ratios

A time is the median over the rounds. "Faster" is the peer's time by ours: the median over the rounds, with the smallest and the largest. Memory is the most that the
process had.

{table}

## The machine's limit

FLOPs are those the model's numbers need (`tenterhook bench --help` has the formula). "Best product" is the fastest matrix product among those that the workload is made of, "all its
products" all of them one after the other; both by `tenterhook bench matmul`, in the same run.

{limits}
"""


def page(about: dict, results: list[dict]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return PAGE.format(**(about | {"versions": versions}), table=table(results), limits=limits(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in args.results]
    results = {result["name"]: result for run in runs for result in run["results"]}
    about = runs[-1]["about"] | {
        "rounds": " or ".join(sorted({str(run["about"]["rounds"]) for run in runs})),
        "made_by": f"bench/report.py from {len(runs)} runs of scripts/bench --only ...",
        "note": f"\n{args.note}\n" if args.note else "",
    }
    print(page(about, list(results.values())), end="")


if __name__ == "__main__":
    main()
