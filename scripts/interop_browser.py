#!/usr/bin/env python
"""Opens the dashboard in a real Chromium, on runs that the built binary made, and holds what it shows against the files.

    interop_browser.py TENTERHOOK [--only NAME...] [--picture FILE.png]

    list       all runs with status, steps and best metric; sorting, filter, two runs chosen to compare
    metrics    charts with every number; smoothing, axes, search, other runs, a zoom that asks for the steps in full
    long       a log that no chart can hold: means with a band, and in full where one looks closely
    layers     gradient norms and activations as heat maps with the least and greatest number of the log
    histograms over time and at one step
    hooks      the table has the receipts' numbers
    captures   attention patterns and tokens with the numbers of the safetensors file
    record     checkpoints, configuration, what differs, starts
    killed     a run killed with -9 is interrupted, not training for ever
    hostile    markup in names is text
    missing    empty states say what to do, what is not there is an error on the page
    keyboard   every place can be reached and used without a mouse
    sizes      every page on a laptop and a phone, light and dark: no overflow, readable contrast
    live       a run that trains: charts grow, hooks are switched, the end comes
    lost       the server goes away and comes back
    store      captures outside of runs, with --captures
    pages      the pages of `lens`, `heads` and `patch` with --html

Every page must leave the browser's console empty. Screenshots are kept in target/browser.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

import dashboard_pages as pages
from browser import Browser
from checks import attempt, run
from dashboard_pages import ADDRESS, Dashboard, expect, near
from dashboard_runs import Lab, Run, until

MODEL = Path(__file__).resolve().parent.parent / "crates/models/tests/data/gpt2"


def check_live(dashboard: Dashboard) -> None:
    page = dashboard.browser
    training = dashboard.lab.start("live-one", 100_000, "--serve")
    controlled = dashboard.serve("--control")
    try:
        run = Run(dashboard.lab.runs / "live-one")
        until(lambda: (run.folder / "metrics.jsonl").exists() and run.series("loss"), "the first step")
        page.open(f"{training.find(ADDRESS)}/#/run/live-one/metrics")
        page.has("training", "of 100,000")
        count = lambda: int(page.label('[data-metric="loss"] .plot').split(": ")[1].split(" values")[0].replace(",", ""))
        before = count()
        until(lambda: count() > before, "new points in the chart")
        page.shot("live")
        page.quiet()

        page.open(f"{controlled.find(ADDRESS)}/#/run/live-one/hooks")
        switch = "[aria-label='throughput enabled']"
        page.click(switch)
        page.has("token", selector="#notices")
        page.quiet("403")
        page.one("#control-token").send_keys(controlled.find(r"token\D*?([0-9A-Za-z_-]{16,})"))
        page.click(switch)
        page.has("Changes while it ran", "disabled")
        until(lambda: page.attribute(switch, "aria-checked") == "false", "the hook is off")
        page.shot("hooks-control")
        change = run.record["hook_changes"][-1]
        expect(change["hook"] == "throughput" and change["enabled"] is False, str(change))
        until(lambda: run.series("loss")[-1][0] > change["step"] + 10, "steps without it")
        expect(run.series("time/tokens_per_s")[-1][0] <= change["step"], "it measures although it is off")
        page.read(switch, lambda element: element.send_keys(" "))
        until(lambda: page.attribute(switch, "aria-checked") == "true", "the hook is on again")

        page.open(f"{dashboard.url}/#/run/live-one/metrics")
        expect(training.interrupt() == 75, f"the run ended with {training.child.returncode}")
        page.has("interrupted", selector=".run-head .pill")
        expect(near(page.text('[data-metric="loss"] .value'), run.series("loss")[-1][1]), "the last loss")
        page.open(f"{dashboard.url}/#/")
        expect("interrupted" in page.text('tr[data-run="live-one"]'), "the end in the list")
    finally:
        controlled.kill()
        training.kill()


def check_lost(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good)
    page.has("connected", selector="#connection")
    port = dashboard.url.rsplit(":", 1)[1]
    dashboard.server.kill()
    page.has("connection lost", selector="#connection")
    page.shot("lost")
    dashboard.server = dashboard.serve(port=port)
    page.has("connected", selector="#connection")
    page.open(f"{dashboard.url}/#/")
    page.has("induction")
    page.quiet("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")


def check_store(dashboard: Dashboard) -> None:
    page, folder = dashboard.browser, dashboard.lab.folder / "captured"
    folder.mkdir()
    ids = dashboard.lab.folder / "ids.json"
    ids.write_text("[[1, 2, 3, 4, 5]]")
    run(dashboard.lab.binary, "capture", MODEL, "--tokens-file", ids, "--points", "blocks.*.attn.hook_pattern", "--out", folder / "tokens.safetensors")
    server = dashboard.serve("--captures", str(folder))
    try:
        page.open(f"{server.find(ADDRESS)}/#/")
        page.one("nav a", "Captures").click()
        page.has("tokens.safetensors", "blocks.0.attn.hook_pattern", "5 × 5", "All heads")
        page.settle()
        page.shot("store")
    finally:
        server.kill()


def check_pages(dashboard: Dashboard) -> None:
    page, folder = dashboard.browser, dashboard.lab.folder
    words = {
        "lens": ("--tokens", "1,2,3,4"),
        "heads": ("--detect", "induction"),
        "patch": ("--clean-tokens", "1,2,3,4", "--corrupt-tokens", "1,7,3,4", "--answer", "#5", "--wrong", "#9"),
    }
    for command, options in words.items():
        file = folder / f"{command}.html"
        run(dashboard.lab.binary, command, MODEL.resolve(), *options, "--html", file)
        page.driver.get(file.as_uri())
        until(lambda: page.driver.find_elements("css selector", ".main-svg"), f"the plot of {command}")
        page.shot(f"page-{command}")


CHECKS = {
    "list": pages.check_list,
    "metrics": pages.check_metrics,
    "long": pages.check_long,
    "layers": pages.check_layers,
    "histograms": pages.check_histograms,
    "hooks": pages.check_hooks,
    "captures": pages.check_captures,
    "record": pages.check_record,
    "killed": pages.check_killed,
    "hostile": pages.check_hostile,
    "missing": pages.check_missing,
    "keyboard": pages.check_keyboard,
    "sizes": pages.check_sizes,
    "live": check_live,
    "lost": check_lost,
    "store": check_store,
    "pages": check_pages,
}


def examine(dashboard: Dashboard, name: str) -> str:
    CHECKS[name](dashboard)
    dashboard.browser.quiet()
    return "ok"


def picture(dashboard: Dashboard, file: Path) -> None:
    """The README's picture: two runs over each other, long enough that something is learned."""
    for name, rate in (("induction-heads", 3e-3), ("slow-start", 1e-3)):
        dashboard.lab.train(name, 600, lr=rate)
    page = dashboard.open("induction-heads", query="?with=slow-start")
    page.script("const r = document.querySelector('[aria-label=Smoothing]'); r.value = 0.6; r.dispatchEvent(new Event('input'))")
    page.settle()
    page.shot("picture")
    with Image.open(page.shots / "picture.png") as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def found(program: str) -> str:
    path = shutil.which(program)
    if not path:
        sys.exit(f"`{program}` is not installed: apt-get install chromium chromium-driver")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tenterhook", type=Path)
    parser.add_argument("--only", metavar="NAME", choices=CHECKS, nargs="+")
    parser.add_argument("--picture", metavar="FILE.png", type=Path, help="write the README's picture, and check nothing")
    options = parser.parse_args()
    shots = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "browser"
    browser = Browser(shots, found("chromium"), found("chromedriver"))
    failed = 0
    try:
        with tempfile.TemporaryDirectory() as scratch, Dashboard(Lab(options.tenterhook.resolve(), Path(scratch)), browser) as dashboard:
            if options.picture:
                picture(dashboard, options.picture)
                return 0
            for name in options.only or CHECKS:
                result = attempt(lambda: examine(dashboard, name))
                if result != "ok":
                    browser.shot(f"FAILED-{name}")
                    browser.driver.get_log("browser")  # the next check does not answer for it
                    failed += 1
                print(f"{name:12}{result}", flush=True)
    finally:
        browser.close()
    print(f"screenshots in {shots}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
