// Layers over time: gradient norms and statistics of activations as heat maps.
import { get, path } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { extent, hover, logScale, rowAxis, scale } from "./heatmap.js";
import { fail } from "./notice.js";
import { axis, colourbar, Figure } from "./plot.js";

const REFRESH_MS = 5000;
const FEW_ROWS = 2;

export function heatmapsTab({ run }, panel, signal) {
  const maps = new Map();
  const list = h("div", { class: "stack" });
  const missing = h("div");
  const field = h("input", { type: "text", class: "mono", placeholder: "act/*/std", "aria-label": "A pattern of metrics, with one *", list: "patterns" });
  const form = h("form", { class: "toolbar", on: { submit: add } }, h("label", { class: "field" }, "Heat map of", field), h("button", { type: "submit" }, "Add"),
    h("span", { class: "muted small" }, "one * stands for the layer, as in val/act/*/mean"));

  fill(panel, form, list, missing);
  update();
  run.addEventListener("info", update, { signal });
  const timer = setInterval(() => { if (run.info.live && !document.hidden) maps.forEach((map) => map.load()); }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  run.addEventListener("over", () => maps.forEach((map) => map.load()), { signal });

  function update() {
    const found = patterns(run.info.metrics.map((metric) => metric.name));
    for (const pattern of found) show(pattern, list);
    const advice = [
      !found.some((pattern) => pattern.startsWith("grad_norm/")) && empty("No gradient norms per parameter were recorded.", "Add to the configuration:", '[[hooks]]\nkind = "gradient_monitor"\nlog_frequency = 10'),
      !found.some((pattern) => pattern.startsWith("act/")) && empty("No statistics of activations were recorded.", "Add to the configuration:", '[[hooks]]\nkind = "activation_stats"\npoints = "*hook_resid_post"\nevery = 10'),
    ];
    fill(missing, run.info.loading === null ? advice : null);
  }

  function show(pattern, where, first = false) {
    if (maps.has(pattern)) return maps.get(pattern);
    const map = new LayerMap(run, pattern, signal);
    maps.set(pattern, map);
    if (first) where.prepend(map.element);
    else where.append(map.element);
    return map;
  }

  function add(event) {
    event.preventDefault();
    const pattern = field.value.trim();
    if (pattern.split("*").length !== 2) return fail(new Error(`A pattern has exactly one *: \`${pattern}\` has ${pattern.split("*").length - 1}.`));
    const map = show(pattern, list, true);
    map.element.scrollIntoView({ block: "nearest" });
  }
}

/** `grad_norm/*` and `act/X/std` for every statistic, in the order in which people look. */
function patterns(names) {
  const found = new Map();
  const add = (pattern) => found.set(pattern, (found.get(pattern) ?? 0) + 1);
  for (const name of names) {
    const parts = name.split("/");
    if (parts.length >= 3 && (parts[0] === "act" || parts[1] === "act")) add(`${name.startsWith("act/") ? "act" : `${parts[0]}/act`}/*/${parts.at(-1)}`);
    else if (/^grad_/.test(parts[0]) && parts.length > 1) add(`${parts[0]}/*`);
  }
  const rank = (pattern) => (pattern.startsWith("grad_norm/") ? 0 : pattern.startsWith("act/") ? 1 : 2);
  return [...found].filter(([, many]) => many >= FEW_ROWS).map(([pattern]) => pattern).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

class LayerMap {
  #answer = null;
  #busy = false;

  constructor(run, pattern, signal) {
    Object.assign(this, { run, pattern, signal });
    this.figure = new Figure(() => this.#build(), signal);
    this.log = h("input", { type: "checkbox", checked: /^grad_norm/.test(pattern), on: { change: () => this.figure.invalidate() } });
    this.said = h("p", { class: "said" }, "Loading…");
    this.note = h("span", { class: "muted small" });
    this.element = h("figure", { class: "card heat", "aria-busy": "true", data: { pattern } },
      h("figcaption", {}, h("span", { class: "name" }, pattern), this.note, h("span", { class: "grow" }), h("label", { class: "field" }, this.log, "Log colours")), this.figure.element, this.said);
    this.load();
  }

  async load() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      this.#answer = await get(path(this.run.id, "heatmap"), { pattern: this.pattern }, this.signal);
      const { rows, steps } = this.#answer;
      this.said.textContent = rows.length ? "" : "No metric matches this pattern.";
      this.note.textContent = rows.length ? `${count(rows.length)} rows × ${count(steps.length)} steps` : "";
      this.figure.element.style.height = rows.length ? `${Math.min(620, Math.max(96, rows.length * 15) + 44)}px` : "0";
      this.figure.invalidate();
    } catch (error) {
      this.said.textContent = error.message;
      fail(error);
    }
    this.said.hidden = this.said.textContent === "";
    this.#busy = false;
    this.element.removeAttribute("aria-busy");
  }

  #build() {
    if (!this.#answer?.rows.length) return null;
    const { rows, steps, z } = this.#answer;
    const ends = extent(z);
    const colours = (this.log.checked && logScale(z)) || { z, ...scale(ends ?? [0, 1]), colorbar: colourbar() };
    const room = this.element.clientWidth < 600 ? 18 : 40;
    const names = trimmed(rows);
    const longest = Math.min(room, Math.max(...names.map((name) => name.length)));
    return {
      data: [{ type: "heatmap", x: steps, hoverinfo: "text", hoverongaps: false, text: hover(z, (y) => rows[y], (x) => `step ${steps[x]}`), ...colours }],
      layout: { margin: { l: 16 + longest * 5.9, r: 8, t: 4, b: 28 }, xaxis: axis({ showgrid: false, tickformat: "~s" }), yaxis: rowAxis(names, this.figure.element.clientHeight, room) },
      label: `Heat map of ${this.pattern}: ${rows.length} rows over ${steps.length} steps up to step ${steps.at(-1)}${ends ? `, from ${number(ends[0])} to ${number(ends[1])}` : ""}`,
    };
  }
}

/** Row names without the beginning that nearly all of them share. */
function trimmed(rows) {
  const first = rows.find((row) => row.includes("."))?.split(".")[0];
  const sharing = rows.filter((row) => row.startsWith(`${first}.`)).length;
  return first === "transformer" && sharing > rows.length / 2 ? rows.map((row) => row.replace(/^transformer\./, "")) : rows;
}
