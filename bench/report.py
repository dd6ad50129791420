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

# The build that runs on every CPU of its kind: what `cargo build --release` makes.
DEFAULT = "default"
PACKAGES = ("torch", "transformers", "transformer-lens", "nnsight", "lightning")


# What tables cannot say, written by hand: it stands behind them.
NOTES = Path(__file__).with_name("notes.md")


def cpu() -> str:
    """The first processor. Names alone do not tell generations apart."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    name = told.get("model name") or platform.processor() or "unknown"
    generation = [f"{key.removeprefix('cpu ')} {told[key]}" for key in ("cpu family", "model") if key in told]
    vectors = "AVX-512" if "avx512f" in told.get("flags", "") else "AVX2" if "avx2" in told.get("flags", "") else "no AVX2"
    return f"{name} ({', '.join([*generation, vectors])})"


def about(args, rounds: int, threads: int) -> dict:
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "system": f"{platform.system()} {platform.release()}",
        "threads": threads,
        "rounds": rounds,
        "builds": "default" + (" and native (target-cpu=native)" if args.native else ""),
        "note": "",
        "made_by": "scripts/bench" + (" --native" if args.native else "") + (" --quick" if args.quick else "") + (" --only ..." if args.only else ""),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def ratios(ours: dict, peer: dict) -> list[float]:
    return [theirs / mine for mine, theirs in zip(ours["ms"], peer["ms"])]


def ms(times: list[float]) -> str:
    middle = statistics.median(times)
    return f"{middle:.0f} ms" if middle >= 100 else f"{middle:.1f} ms"


def line(result: dict) -> str:
    """One line for who waits."""
    parts = []
    for build, ours in result["builds"].items():
        peers = ", ".join(f"{p['name']} {ms(p['ms'])} ({statistics.median(ratios(ours, p)):.2f}x)" for p in result["peers"].values())
        share = f", {100 * ours['gflops'] / ours['matmul']['best']:.0f}% of matmul" if "matmul" in ours else ""
        overhead = f", overhead {100 * ours['overhead']:.1f}%" if "overhead" in ours else ""
        parts.append(f"  {build} {ms(ours['ms'])}{share}{overhead}; {peers}")
    return "\n".join(parts)


def grid(head: list[str], rows: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def memory(megabytes: float | None) -> str:
    return f"{megabytes:.0f} MB" if megabytes else ""


def faster(ours: dict, peer: dict) -> str:
    found = sorted(ratios(ours, peer))
    return f"**{statistics.median(found):.2f}x** ({found[0]:.2f} to {found[-1]:.2f})"


def builds_of(results: list[dict]) -> list[str]:
    return list({build: None for result in results for build in result["builds"]})


def table(results: list[dict]) -> str:
    """Every workload against every peer: a time and a ratio for each of our builds."""
    builds, rows = builds_of(results), []
    for result in results:
        mine = [result["builds"].get(build) for build in builds]
        for peer in result["peers"].values():
            pairs = [(ms(ours["ms"]), faster(ours, peer)) if ours else ("", "") for ours in mine]
            rows.append(
                [
                    result["name"],
                    peer["name"],
                    ms(peer["ms"]),
                    *(cell for pair in pairs for cell in pair),
                    memory(max(ours["peak_rss_mb"] or 0 for ours in mine if ours)),
                    memory(peer["peak_rss_mb"]),
                    peer["agreement"],
                ]
            )
    head = [cell for build in builds for cell in (f"ours, {build}", "faster")]
    return grid(["workload", "peer", "its time", *head, "our memory", "its memory", "outputs"], rows)


def limits(results: list[dict]) -> str:
    """What the workloads reach of the machine's matrix products."""
    rows = []
    for result in results:
        for build, ours in result["builds"].items():
            if "matmul" not in ours:
                continue
            m, torch, speed = ours["matmul"], result["torch_matmul"], ours["gflops"]
            rows.append(
                [
                    result["name"],
                    build,
                    f"{speed:.0f}",
                    f"{m['best']:.0f}",
                    f"{100 * speed / m['best']:.0f}%",
                    f"{m['limit']:.0f}",
                    f"{100 * speed / m['limit']:.0f}%",
                    f"{torch['best']:.0f}",
                    f"{torch['limit']:.0f}",
                ]
            )
    head = ["workload", "build", "GFLOP/s", "best product", "share", "all its products", "share", "PyTorch's best", "PyTorch's all"]
    return grid(head, rows)


def overheads(results: list[dict]) -> str:
    """What capturing costs, where it was measured by turns with a bare forward."""
    rows = [
        [result["name"], *(f"{100 * ours['overhead']:+.1f}%" for ours in result["builds"].values())]
        for result in results
        if all("overhead" in ours for ours in result["builds"].values())
    ]
    return grid(["workload", *builds_of(results)], rows)


PAGE = """\
# Benchmarks

Tenterhook and its peers on the same machine, each workload in one go. Made by `{made_by}`; [docs/benchmarks.md](docs/benchmarks.md) says how to read and repeat it.

- CPU: {cpu}, {threads} threads on both sides, f32; {system}
- date: {date}; builds: {builds}; {rounds} rounds, alternating
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

## What capturing costs

Forwards with and without it by turns in one process (`tenterhook bench forward --overhead`): the median of the differences.

{overheads}

{notes}"""


def page(about: dict, results: list[dict]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    tables = {"table": table(results), "limits": limits(results), "overheads": overheads(results)}
    return PAGE.format(**(about | {"versions": versions}), **tables, notes=NOTES.read_text())


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
