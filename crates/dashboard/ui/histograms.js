// Histograms over time: all steps as a heat map, and one of them as bars.
import { get, path } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { hover } from "./heatmap.js";
import { fail } from "./notice.js";
import { axis, colourbar, Figure, sequential } from "./plot.js";
import { colour } from "./theme.js";

const REFRESH_MS = 5000;
const BINS = 60;

export function histogramsTab({ run }, panel, signal) {
  let names = [];
  let answer = null;
  let at = -1; // the last one, as it moves on
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter histograms", on: { input: list } });
  const choice = h("select", { "aria-label": "Histogram", class: "long", on: { change: () => { at = -1; load(); } } });
  const over = new Figure(() => answer?.steps.length && overTime(answer), signal, { plotly_click: ({ points }) => pick(answer.steps.indexOf(points[0].x)) });
  const one = new Figure(() => answer?.steps.length && bars(answer, index()), signal);
  const slider = h("input", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": "Step of the histogram", on: { input: () => pick(Number(slider.value)) } });
  const said = h("output", {});
  const body = h("div", { class: "halves" },
    h("figure", { class: "card" }, h("figcaption", {}, h("span", { class: "name" }, "Over time"), h("span", { class: "muted small" }, "share of the elements; click on a step")), over.element),
    h("figure", { class: "card" }, h("figcaption", {}, h("span", { class: "name" }, "At one step"), said), one.element, h("div", { class: "slide" }, slider)));
  over.element.classList.add("tall");
  one.element.classList.add("tall");
  const index = () => (at < 0 ? answer.steps.length - 1 : Math.min(at, answer.steps.length - 1));

  run.addEventListener("info", update, { signal });
  const timer = setInterval(() => { if (run.info.live && !document.hidden && names.length) load(); }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return update();

  function update() {
    const now = run.info.histograms ?? [];
    if (panel.firstChild && now.length === names.length) return undefined;
    names = now;
    if (!names.length) {
      fill(panel, empty("No histograms were recorded.", "A gradient monitor records one of every gradient; add to the configuration:", '[[hooks]]\nkind = "gradient_monitor"\nlog_histogram = true'));
      return undefined;
    }
    fill(panel, h("div", { class: "toolbar" }, filter, choice), body);
    return list();
  }

  function list() {
    const before = choice.value;
    const shown = names.filter((name) => name.toLowerCase().includes(filter.value.toLowerCase()));
    fill(choice, shown.map((name) => h("option", { value: name }, name)));
    if (shown.includes(before)) choice.value = before;
    return shown.length && choice.value !== before ? load() : undefined;
  }

  async function load() {
    try {
      const name = choice.value;
      const came = await get(path(run.id, "histograms"), { name }, signal);
      if (name !== choice.value) return;
      answer = came;
      pick(at);
    } catch (error) {
      fail(error);
    }
  }

  function pick(step) {
    at = step >= answer.steps.length - 1 ? -1 : step;
    slider.max = Math.max(0, answer.steps.length - 1);
    slider.value = index();
    said.textContent = answer.steps.length ? `step ${count(answer.steps[index()])}` : "";
    slider.setAttribute("aria-valuetext", said.textContent);
    over.invalidate();
    one.invalidate();
  }
}

const bars = (answer, at) => {
  const [low, high, counts] = [answer.low[at], answer.high[at], answer.counts[at]];
  const width = (high - low) / counts.length || 1;
  const all = counts.reduce((a, b) => a + b, 0);
  return {
    data: [{ type: "bar", x: counts.map((_, bin) => low + (bin + 0.5) * width), y: counts, width, marker: { color: colour("accent"), line: { width: 0 } }, hovertemplate: "around %{x:.4~g}<br><b>%{y:,}</b> elements<extra></extra>" }],
    layout: { bargap: 0.04, xaxis: axis({ exponentformat: "e" }), yaxis: axis({ fixedrange: true, tickformat: "~s" }), margin: { l: 46, r: 10, t: 6, b: 28 } },
    label: `Histogram of ${answer.name} at step ${answer.steps[at]}: ${count(all)} elements from ${number(low)} to ${number(high)}`,
  };
};

// Every step has bins of its own; for one picture they are poured into bins that all share.
function overTime({ name, steps, low, high, counts }) {
  const [least, greatest] = [Math.min(...low), Math.max(...high)];
  const width = (greatest - least) / BINS || 1;
  const shares = steps.map((_, at) => poured(low[at], high[at], counts[at], least, width));
  const z = Array.from({ length: BINS }, (_, bin) => shares.map((share) => share[bin]));
  const middle = z.map((_, bin) => least + (bin + 0.5) * width);
  const shown = z.map((row) => row.map((share) => Math.sqrt(share))); // or the peak would hide the tails
  return {
    data: [{ type: "heatmap", x: steps, y: middle, z: shown, colorscale: sequential(), showscale: true, hoverinfo: "text",
      text: hover(z, (bin) => `around ${number(middle[bin])}`, (at) => `step ${steps[at]}`),
      colorbar: colourbar({ tickvals: rootTicks(shown), ticktext: rootTicks(shown).map((root) => `${number(Number((100 * root * root).toPrecision(2)))}%`) }) }],
    layout: { xaxis: axis({ showgrid: false, tickformat: "~s" }), yaxis: axis({ showgrid: false, exponentformat: "e", fixedrange: true }) },
    label: `Histograms of ${name} over ${steps.length} steps, from ${number(least)} to ${number(greatest)}`,
  };
}

function poured(low, high, counts, least, width) {
  const shares = new Array(BINS).fill(0);
  const all = counts.reduce((a, b) => a + b, 0) || 1;
  const own = (high - low) / counts.length;
  counts.forEach((many, bin) => {
    const [from, to] = [(low + bin * own - least) / width, (low + (bin + 1) * own - least) / width];
    for (let at = Math.floor(from); at < Math.min(BINS, Math.ceil(to) || 1); at += 1) {
      const part = to > from ? (Math.min(to, at + 1) - Math.max(from, at)) / (to - from) : 1;
      if (at >= 0) shares[at] += (many * part) / all;
    }
  });
  return shares;
}

function rootTicks(shown) {
  const most = Math.max(...shown.map((row) => Math.max(...row)));
  return [0, 0.25, 0.5, 0.75, 1].map((part) => part * most);
}
