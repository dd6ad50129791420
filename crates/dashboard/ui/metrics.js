// All metrics of a run as charts, grouped by what stands before the slash.
import { Card } from "./card.js";
import { empty, fill, h } from "./dom.js";
import { count } from "./format.js";
import { chooser } from "./others.js";

const FIRST = ["", "val", "train", "time", "lr"];
const TITLES = { "": "Run", val: "Validation", train: "Training", time: "Throughput and time", lr: "Learning rates", act: "Activations", grad_norm: "Gradient norms" };
const MANY = 12;

/** A loss comes before what else a group has. */
const byRank = (a, b) => isLoss(b) - isLoss(a) || (a < b ? -1 : 1);
const isLoss = (name) => /(^|\/)loss$/.test(name);

/** How charts are drawn; the same for all runs, as long as the page is open. */
const view = { smooth: 0, log: false, x: "step", range: null, search: "" };
const opened = new Map();

export function metricsTab({ run, others }, panel, signal) {
  view.range = null;
  const groups = new Map();
  const list = h("div");
  const cards = () => [...groups.values()].flatMap((group) => [...group.cards.values()]);
  const redraw = (names = null) => cards().forEach((card) => { if (!names || names.includes(card.name)) card.update(); });
  const zoom = (range) => {
    view.range = range;
    tools.range();
    redraw();
  };
  const tools = toolbar(redraw, search, zoom);

  fill(panel, h("div", { class: "tools" }, tools.element, chooser(others, signal)), list);
  update();
  run.addEventListener("info", update, { signal });
  run.addEventListener("series", (event) => redraw(event.detail), { signal });
  others.addEventListener("series", (event) => redraw(event.detail), { signal });
  others.addEventListener("change", () => redraw(), { signal });

  function update() {
    for (const { name } of run.info.metrics) {
      const prefix = name.includes("/") ? name.slice(0, name.indexOf("/")) : "";
      if (!groups.has(prefix)) groups.set(prefix, new Group(prefix, (metric) => new Card(metric, { run, others, view, zoom }, signal)));
      groups.get(prefix).names.add(name);
    }
    const place = (prefix) => (FIRST.indexOf(prefix) + 1 || FIRST.length + 1);
    const order = [...groups.values()].sort((a, b) => place(a.prefix) - place(b.prefix) || (a.prefix < b.prefix ? -1 : 1));
    const elements = order.map((group) => group.element);
    if (elements.length && elements.some((element, at) => list.children[at] !== element)) fill(list, elements);
    if (!elements.length) fill(list, run.info.loading === null ? empty("No metric has been recorded yet.", "They appear with the first step that is logged (train.log_every).") : empty("Reading the log…"));
    search();
  }

  function search() {
    const words = view.search.toLowerCase().split(/\s+/);
    const matches = (name) => words.every((word) => name.toLowerCase().includes(word));
    for (const group of groups.values()) group.search(matches, view.search !== "");
    tools.found([...groups.values()].reduce((sum, group) => sum + group.shown, 0));
  }
}

/** Metrics with the same prefix. Its charts are made when it is opened for the first time. */
class Group {
  cards = new Map();
  names = new Set();
  shown = 0;

  constructor(prefix, make) {
    Object.assign(this, { prefix, make });
    this.matches = () => true;
    this.note = h("span", { class: "muted small" });
    this.grid = h("div", { class: "grid" });
    this.element = h("details", { class: "group" },
      h("summary", {}, h("h2", {}, TITLES[prefix] ?? prefix), this.note), this.grid);
    this.element.addEventListener("toggle", () => {
      if (!this.searching) opened.set(prefix, this.element.open);
      this.#populate();
    });
  }

  search(matches, searching) {
    const names = [...this.names].filter(matches);
    this.matches = matches;
    this.searching = searching;
    this.shown = names.length;
    this.note.textContent = names.length === this.names.size ? count(names.length) : `${count(names.length)} of ${count(this.names.size)}`;
    this.element.hidden = names.length === 0;
    this.element.open = searching || (opened.get(this.prefix) ?? this.names.size <= MANY);
    this.#populate();
  }

  #populate() {
    if (!this.element.open) return;
    let after = null;
    for (const name of [...this.names].sort(byRank)) {
      const card = this.cards.get(name) ?? (this.matches(name) && this.make(name));
      if (!card) continue;
      if (!this.cards.has(name)) this.grid.insertBefore(card.element, after ? after.nextSibling : this.grid.firstChild);
      this.cards.set(name, card);
      card.element.hidden = !this.matches(name);
      after = card.element;
    }
  }
}

function toolbar(redraw, search, zoom) {
  const found = h("span", { class: "muted small", role: "status" });
  const field = h("input", { type: "search", placeholder: "Search metrics  ( / )", "aria-label": "Search metrics", value: view.search,
    on: { input: () => { view.search = field.value; search(); } } });
  const weight = h("output", { class: "number" }, view.smooth.toFixed(2));
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, "aria-label": "Smoothing",
    on: { input: () => { view.smooth = Number(smooth.value); weight.textContent = view.smooth.toFixed(2); redraw(); } } });
  const log = h("input", { type: "checkbox", checked: view.log, on: { change: () => { view.log = log.checked; redraw(); } } });
  const axis = h("select", { "aria-label": "Horizontal axis", on: { change: () => { view.x = axis.value; redraw(); } } },
    [["step", "Step"], ["relative", "Time since the start"], ["wall", "Time of day"]].map(([value, title]) => h("option", { value }, title)));
  axis.value = view.x;
  const bound = (title) => h("input", { type: "number", min: 0, class: "step", placeholder: title, "aria-label": `Steps: ${title}`, on: { change: bounds } });
  const [from, to] = [bound("from"), bound("to")];
  const reset = h("button", { type: "button", on: { click: () => zoom(null) } }, "All steps");

  function bounds() {
    const low = from.value === "" ? 0 : Number(from.value);
    const high = to.value === "" ? Number.MAX_SAFE_INTEGER : Number(to.value);
    zoom(low < high && (from.value !== "" || to.value !== "") ? [low, high] : null);
  }

  function range() {
    from.value = view.range?.[0] || "";
    to.value = view.range && view.range[1] < Number.MAX_SAFE_INTEGER ? view.range[1] : "";
    reset.hidden = !view.range;
  }

  range();
  return {
    element: h("div", { class: "toolbar" }, field,
      h("label", { class: "field" }, "Smoothing", smooth, weight),
      h("label", { class: "field" }, axis),
      h("label", { class: "field" }, log, "Log axis"),
      h("span", { class: "field" }, "Steps", from, to, reset), found),
    found: (many) => { found.textContent = view.search ? `${count(many)} found` : ""; },
    range,
  };
}
