"""The pages of recorded runs: what they show is what the files say."""

import shutil

import numpy as np
from safetensors.numpy import load_file
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from browser import LAPTOP, PHONE, Browser
from checks import Failure
from dashboard_runs import HOSTILE, ODD, Lab, Process, Run, until

TABS = ("metrics", "layers", "histograms", "hooks", "captures", "checkpoints", "config", "record")
STEPS = 60
# Where a server says it is.
ADDRESS = r"(http://[0-9.]+:[0-9]+)"


def expect(condition, what: str) -> None:
    if not condition:
        raise Failure(what)


def near(shown: str, real: float) -> bool:
    """Whether a number on the page, of about five digits, is this one."""
    return abs(float(shown.replace(",", "")) - real) <= 1e-4 * abs(real) + 1e-12


class Dashboard:
    """A server over some runs, and a browser in front of it."""

    def __init__(self, lab: Lab, browser: Browser):
        self.lab, self.browser = lab, browser
        self.good = lab.train("induction", STEPS)
        self.other = lab.train("lower-rate", STEPS, lr=1e-3)
        self.odd = lab.train(ODD, 3, hooks="")
        self.killed = lab.kill("cut-short")
        self.hostile = lab.doctor(self.good, "stranger")
        self.server = self.serve()
        self.url = self.server.find(ADDRESS)

    def serve(self, *options: str, port: str = "0") -> Process:
        return Process([self.lab.binary, "serve", "--runs-dir", self.lab.runs, "--port", port, *options], self.lab.folder)

    def open(self, run: Run | str, tab: str = "metrics", query: str = "") -> Browser:
        name = run if isinstance(run, str) else run.folder.name
        encoded = self.browser.script("return encodeURIComponent(arguments[0])", name)
        self.browser.open(f"{self.url}/#/run/{encoded}/{tab}{query}")
        return self.browser

    def __enter__(self) -> "Dashboard":
        return self

    def __exit__(self, *_) -> None:
        self.server.kill()


def check_list(dashboard: Dashboard) -> None:
    page = dashboard.browser
    page.open(f"{dashboard.url}/#/")
    rows = {row.get_attribute("data-run"): row.text for row in page.all("tr[data-run]")}
    expect(set(rows) == {folder.name for folder in dashboard.lab.runs.iterdir()}, f"the list has {sorted(rows)}")
    for each in (dashboard.good, dashboard.other):
        text, best = rows[each.folder.name], min(value for _, value in each.series("val/loss"))
        expect("completed" in text and "val/loss" in text and each.record["config_hash"][:8] in text, text)
        expect(any(near(word, best) for word in text.split() if word[0].isdigit() and ":" not in word and word[-1].isdigit() and len(word) < 9), f"{best} is not in {text}")
        expect(str(STEPS) in text.split(), text)
    expect("interrupted · killed" in rows[dashboard.killed.folder.name], rows[dashboard.killed.folder.name])
    page.shot("list")

    page.one("th button", "Run").click()
    names = [cell.text for cell in page.all("tr[data-run] th a")]
    expect(names == sorted(names, key=str.lower), f"sorted: {names}")
    page.press("/")
    page.press("lower")
    until(lambda: len(page.all("tr[data-run]")) == 1, "the filter")
    page.press(Keys.CONTROL, "a")
    page.replace("input[type=search]", "")
    for each in (dashboard.good, dashboard.other):
        page.one(f'tr[data-run="{each.folder.name}"] input[type=checkbox]').click()
    page.one("button.primary", "Compare 2 runs").click()
    page.has("induction", "lower-rate", selector=".legend")
    page.settle()


def check_metrics(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good)
    for name in ("loss", "lr", "grad_norm", "val/loss", "val/accuracy", "train/loss", "time/tokens_per_s"):
        series = dashboard.good.series(name)
        card = f'[data-metric="{name}"]'
        page.script("arguments[0].scrollIntoView({block: 'center'})", page.one(card))
        page.settle()
        expect(near(page.text(f"{card} .value"), series[-1][1]), f"{name} ends with {series[-1][1]}, not {page.text(f'{card} .value')}")
        label = page.label(f"{card} .plot")
        expect(f"{len(series)} values from step {series[0][0]} to {series[-1][0]}" in label, f"{name}: {label}")
        expect(page.script("return document.querySelector(arguments[0]).getAttribute('d').length", f"{card} path.js-line") > 10, f"{name} has no line")
    page.script("scrollTo(0, 0)")
    page.settle()
    page.shot("metrics")

    lines = lambda: len(page.driver.find_elements("css selector", '[data-metric="loss"] path.js-line'))
    expect(lines() == 1, f"{lines()} lines")
    page.script("const r = document.querySelector('[aria-label=Smoothing]'); r.value = 0.8; r.dispatchEvent(new Event('input'))")
    until(lambda: lines() == 2, "the raw line behind the smooth one")
    page.one(".toolbar label", "Log axis").click()
    for value in ("relative", "wall", "step"):
        Select(page.one("[aria-label='Horizontal axis']")).select_by_value(value)
        page.settle()
    page.one(".legend summary").click()
    page.one(".menu .row", "lower-rate").click()
    until(lambda: lines() == 4, "the lines of the other run")
    expect("with=lower-rate" in page.driver.current_url, page.driver.current_url)
    page.press(Keys.ESCAPE)
    page.shot("metrics-compared")

    page.replace("[aria-label='Steps: from']", "20")
    page.replace("[aria-label='Steps: to']", "30")
    until(lambda: "11 values from step 20 to 30" in page.label('[data-metric="loss"] .plot'), "the steps in full")
    page.one("button", "All steps").click()
    plot = page.one('[data-metric="loss"] .plot .nsewdrag')
    ActionChains(page.driver).move_to_element_with_offset(plot, -60, 0).click_and_hold().move_by_offset(100, 0).release().perform()
    until(lambda: page.one("[aria-label='Steps: from']").get_attribute("value") not in ("", "0"), "a zoom with the mouse")
    page.settle()
    page.one("button", "All steps").click()

    page.replace("[aria-label='Search metrics']", "c_attn.weight grad_norm")
    until(lambda: len(page.all(".chart")) == 2, "two gradient norms found")
    page.settle()
    page.replace("[aria-label='Search metrics']", "")


def check_long(dashboard: Dashboard) -> None:
    steps, lab = 200_000, dashboard.lab
    run = lab.lengthen(dashboard.good, "long", steps)
    page = dashboard.open(run)
    card = '[data-metric="loss"]'
    until(lambda: f"{steps:,} values from step" in page.label(f"{card} .plot"), "the whole log")
    losses = [value for _, value in run.series("loss")]
    label = page.label(f"{card} .plot")
    expect(near(label.split("least ")[1].split(",")[0], min(losses)) and near(label.split("greatest ")[1].split(", last")[0], max(losses)), label)
    expect("÷" in page.text(f"{card} figcaption"), "the chart does not say that it shows means")
    expect(page.driver.find_elements("css selector", f"{card} .fills path"), "no band from the least to the greatest")
    page.shot("long")
    page.replace("[aria-label='Steps: from']", "70001")
    page.replace("[aria-label='Steps: to']", "70500")
    until(lambda: "500 values from step 70001 to 70500" in page.label(f"{card} .plot"), "the steps in full")
    part = losses[70_000:70_500]
    expect(near(page.label(f"{card} .plot").split("least ")[1].split(",")[0], min(part)), "other numbers")
    shutil.rmtree(run.folder)


def check_layers(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good, "layers")
    for pattern in ("grad_norm/*", "act/*/mean", "act/*/std"):
        card = f'[data-pattern="{pattern}"]'
        page.script("arguments[0].scrollIntoView({block: 'center'})", page.one(card))
        page.settle()
        values = dashboard.good.matching(pattern)
        low, high = page.label(f"{card} .plot").split(", from ")[1].split(" to ")
        expect(near(low, min(values)) and near(high, max(values)), f"{pattern} goes from {min(values)} to {max(values)}, not {low} to {high}")
        expect(page.driver.find_elements("css selector", f"{card} .heatmaplayer image"), f"{pattern} is not drawn")
    page.has("blocks.0.hook_resid_post", "blocks.1.hook_mlp_out")
    page.script("scrollTo(0, 0)")
    page.settle()
    page.shot("layers")
    page.replace("[aria-label^='A pattern of metrics']", "val/*")
    page.one("button", "Add").click()
    page.one('[data-pattern="val/*"]')
    page.settle()


def check_histograms(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good, "histograms")
    rows = dashboard.good.histograms()
    names = [option.text for option in Select(page.one("[aria-label=Histogram]")).options]
    expect(set(names) == set(rows[-1]["histograms"]), f"the histograms of {names}")
    Select(page.one("[aria-label=Histogram]")).select_by_visible_text("grad/transformer.wte.weight")
    one = lambda: page.script("return document.querySelectorAll('.plot')[1].getAttribute('aria-label')")

    def shows(row: dict) -> None:
        """The bars are those of a line of the file."""
        real = row["histograms"]["grad/transformer.wte.weight"]
        until(lambda: f"wte.weight at step {row['step']}: {sum(real['counts']):,} elements" in one(), f"step {row['step']}, not {one()}")
        low, high = one().split("elements from ")[1].split(" to ")
        expect(near(low, real["low"]) and near(high, real["high"]), f"{one()} is not {real}")

    shows(rows[-1])
    page.settle()
    expect("Histograms of grad/" in page.label(".plot"), page.label(".plot"))
    expect(len(page.driver.find_elements("css selector", ".barlayer .point")) > 5, "no bars")
    page.shot("histograms")
    page.one("[aria-label='Step of the histogram']").send_keys(Keys.HOME)
    shows(rows[0])
    page.settle()


def check_hooks(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good, "hooks")
    rows = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in page.all(".hooks tbody tr")]
    wanted = [hook["id"] for hook in dashboard.good.record["hooks"]]
    expect([row[1].split("\n")[0] for row in rows] == wanted, f"hooks in another order: {[row[1] for row in rows]}")
    for row, receipt in zip(rows, (dashboard.good.receipts()[each] for each in wanted), strict=True):
        shown = [int(cell.replace(",", "")) for cell in (row[3], row[4], row[5], row[8])]
        expect(shown == [receipt[key] for key in ("fired", "events", "edits", "errors")], f"{row} is not {receipt}")
        expect(row[7].endswith("%") and row[9] == "on", str(row))
    page.one("summary", "6 points").click()
    page.has("blocks.1.hook_mlp_out")
    page.shot("hooks")


def check_captures(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good, "captures")
    file = next((dashboard.good.folder / "captures").iterdir())
    tensors = load_file(file)
    shown = page.text(".card figcaption")
    name = page.text("main p.small").split(" · ")[0]
    expect("hook_pattern" in name and f"mean {np.mean(tensors[name][0, 0]):.5g}" in shown, f"{name}: {shown}")
    expect(len(page.all(".thumb")) == 4, "four heads")
    page.shot("captures")
    page.one(".thumb", "head 2").click()
    greatest = float(tensors[name][0, 2].max())
    until(lambda: near(page.text(".card figcaption").split(" to ")[-1], greatest), f"the greatest of head 2, {greatest}")
    page.replace("input.index", "3")
    until(lambda: "index 3, 2" in page.label(".plot.square"), "another example")
    Select(page.one("[aria-label=Point]")).select_by_visible_text("blocks.1.hook_resid_post")
    page.has("Norm of every token")
    page.settle()
    name = page.text("main p.small").split(" · ")[0]
    norms = np.linalg.norm(tensors[name][0], axis=-1)
    low, high = page.script("return document.querySelectorAll('.plot')[1].getAttribute('aria-label')").split(": from ")[1].split(" to ")
    expect(near(low, float(norms.min())) and near(high, float(norms.max())), f"norms from {norms.min()} to {norms.max()}, not {low} to {high}")
    page.shot("captures-tokens")


def check_record(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.good, "checkpoints")
    for folder in (dashboard.good.folder / "checkpoints").iterdir():
        page.has(folder.name)
    dashboard.open(dashboard.good, "config")
    expect(page.text("pre.config").strip() == (dashboard.good.folder / "config.toml").read_text().strip(), "another configuration")
    Select(page.one("#other")).select_by_visible_text("lower-rate")
    page.has("0.003", "0.001")
    page.shot("config")
    dashboard.open(dashboard.good, "record")
    page.has(dashboard.good.record["config_hash"], "One start", "seed".title(), f"0 – {STEPS}")


def check_killed(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.killed)
    page.has("interrupted · killed", "This run was killed", "--resume cut-short")
    page.shot("killed")


def check_hostile(dashboard: Dashboard) -> None:
    page = dashboard.browser
    for tab in TABS:
        dashboard.open(dashboard.hostile, tab)
        page.has(HOSTILE)
        expect(page.script("return window.hacked === undefined && !document.querySelector('main img, main b:not(.legend b), main a[href^=javascript], svg a')"), f"markup in {tab}")
    dashboard.open(dashboard.hostile, "layers")
    page.has("onerror")
    dashboard.open(dashboard.hostile, "metrics")
    plot = page.one(f"[data-metric={page.script('return JSON.stringify(arguments[0])', HOSTILE)}] .plot")
    page.script("arguments[0].scrollIntoView({block: 'center'})", plot)
    page.settle()
    ActionChains(page.driver).move_to_element(plot).move_by_offset(20, 5).perform()
    until(lambda: "<img src=x" in page.script("return document.querySelector(\"[data-metric^='<img'] .hoverlayer\").textContent"), "the name in a hover text")
    expect(page.script("return window.hacked === undefined && !document.querySelector('svg a')"), "markup in a hover text")
    page.shot("hostile")
    dashboard.open(dashboard.odd, "metrics")
    page.has(ODD)
    page.open(f"{dashboard.url}/#/")
    page.has(HOSTILE, ODD)
    page.one("a", ODD).click()
    page.has("Validation")
    expect(page.script("return window.hacked") is None, "the list")


def check_missing(dashboard: Dashboard) -> None:
    page = dashboard.open(dashboard.odd, "layers")
    page.has('kind = "gradient_monitor"', 'kind = "activation_stats"')
    for tab, advice in (("histograms", "log_histogram = true"), ("captures", 'kind = "capture"')):
        dashboard.open(dashboard.odd, tab)
        page.has(advice)
    page.quiet()
    dashboard.open("nobody")
    page.has("Nothing to show here")
    page.has("no such run", selector="#notices")
    page.quiet("404")


def check_keyboard(dashboard: Dashboard) -> None:
    page = dashboard.browser
    page.open(f"{dashboard.url}/#/")
    page.press(Keys.TAB)
    expect(page.focused() == "Skip to the content", page.focused())
    page.press(Keys.ENTER)
    seen = []
    for _ in range(60):
        page.press(Keys.TAB)
        seen.append(page.focused())
        ring = page.script("const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1")
        expect(ring, f"the focus on {seen[-1]} is not seen")
        if seen[-1] == "induction":
            break
    expect(seen[-1] == "induction" and "Started" in seen and "Compare induction" in seen, f"the way to the run: {seen}")
    page.press(Keys.ENTER)
    page.has("Validation")
    page.settle()
    page.script("document.querySelector('[role=tab][aria-selected=true]').focus()")
    for tab in TABS[1:]:
        before = page.driver.current_url
        page.press(Keys.ARROW_RIGHT)
        until(lambda: page.driver.current_url != before, "the next tab")
        expect(page.script("return document.activeElement.getAttribute('aria-selected')") == "true", f"the focus at {tab}")
        page.settle()
    page.press(Keys.HOME)
    page.has("Validation")
    page.settle()
    page.press(Keys.TAB, "loss")
    until(lambda: "found" in page.text(".toolbar"), "a search with the keyboard")
    page.press(Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    expect(page.text(".toolbar output") == "0.02", page.text(".toolbar output"))
    page.script("document.querySelector('.legend summary').focus()")
    page.press(Keys.ENTER)
    until(lambda: page.focused().startswith("Filter the runs"), "the menu")
    page.press(Keys.TAB, " ")
    page.has("induction", selector=".legend .chips")
    page.press(Keys.ESCAPE)
    expect(page.focused() == "Compare with…", page.focused())


def check_sizes(dashboard: Dashboard) -> None:
    page = dashboard.browser
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        for size, title in ((LAPTOP, "laptop"), (PHONE, "phone")):
            page.size(size)
            for tab in ("list", *TABS):
                page.open(f"{dashboard.url}/#/") if tab == "list" else dashboard.open(dashboard.good, tab)
                page.fits()
                page.shot(f"{tab}-{title}-{scheme}")
            dashboard.open(dashboard.hostile, "hooks")
            page.fits()
    page.size(LAPTOP)
    dark = page.script("return getComputedStyle(document.body).backgroundColor")
    page.one("#theme").click()
    expect(page.script("return getComputedStyle(document.body).backgroundColor") != dark, "the theme's button")
    dashboard.open(dashboard.good)
    expect(page.script("return document.documentElement.dataset.theme") == "light", "the theme is not kept")
    page.one("#theme").click()
    page.one("#theme").click()
    page.scheme("light")
