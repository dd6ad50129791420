// Other runs laid over this one in the charts: who they are, their numbers, and how to choose them.
import { get } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { fail } from "./notice.js";
import { SeriesStore } from "./series.js";
import { colours, paint, pill } from "./status.js";

const REFRESH_MS = 10000;

/** Tells `change` when the choice changed and `series` (detail: names) when numbers came. */
export class Others extends EventTarget {
  all = [];
  #stores = new Map();

  constructor(run, ids, signal) {
    super();
    this.run = run;
    this.ids = ids;
    this.signal = signal;
    const timer = setInterval(() => this.#refresh(), REFRESH_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  async load() {
    const { runs } = await get("/api/runs", {}, this.signal);
    paint(runs);
    this.all = runs.filter((one) => one.id !== this.run.id);
    this.ids = this.ids.filter((id) => this.all.some((one) => one.id === id));
  }

  /** This run and the others as charts want them: `{id, title, colour, started, store}`. */
  lines(range) {
    const tint = colours([this.run.id, ...this.ids]);
    return [this.run.info, ...this.ids.map((id) => this.all.find((one) => one.id === id))].map((info) => ({
      id: info.id, title: info.name ?? info.id, colour: tint.get(info.id), started: Date.parse(info.started) / 1000, store: this.#store(info.id, range),
    }));
  }

  toggle(id) {
    this.ids = this.ids.includes(id) ? this.ids.filter((one) => one !== id) : [...this.ids, id];
    this.dispatchEvent(new Event("change"));
  }

  // The numbers of a part of the steps are kept beside those of all; only the last part.
  #store(id, range) {
    if (id === this.run.id && !range) return this.run.series;
    const key = `${id}\n${range ?? ""}`;
    if (!this.#stores.has(key)) {
      if (range) for (const old of this.#stores.keys()) if (!old.endsWith("\n") && !old.endsWith(`\n${range}`)) this.#stores.delete(old);
      this.#stores.set(key, new SeriesStore(id, this.signal, (names) => this.dispatchEvent(new CustomEvent("series", { detail: names })), range));
    }
    return this.#stores.get(key);
  }

  async #refresh() {
    if (document.hidden || !this.ids.some((id) => this.all.find((one) => one.id === id)?.live)) return;
    try {
      await this.load();
      for (const id of this.ids) if (this.all.find((one) => one.id === id).live) this.#store(id, null).refetch();
    } catch (error) {
      fail(error);
    }
  }
}

/** The coloured names of the runs in the charts, and the button that chooses more. */
export function chooser(others, signal) {
  const names = h("span", { class: "chips" });
  const filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter the runs to lay over this one", on: { input: list } });
  const rows = h("div", { class: "menu-rows" });
  const menu = h("details", { class: "menu" }, h("summary", { class: "button" }, "Compare with…"), h("div", { class: "menu-body" }, filter, rows));

  function list() {
    const words = filter.value.toLowerCase();
    const shown = others.all.filter((run) => `${run.name} ${run.id} ${run.status}`.toLowerCase().includes(words));
    fill(rows, shown.length === 0 && h("p", { class: "muted small" }, others.all.length ? "No run matches." : "There is no other run yet."), shown.map((run) =>
      h("label", { class: "row" }, h("input", { type: "checkbox", checked: others.ids.includes(run.id), on: { change: () => others.toggle(run.id) } }),
        h("span", { class: "grow" }, run.name ?? run.id), pill(run))));
  }

  function chips() {
    const lines = others.lines(null);
    fill(names, lines.length > 1 && lines.map((line, at) => {
      const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = line.colour;
      return h("span", { class: "chip" }, swatch, h("span", {}, line.title), at > 0 &&
        h("button", { type: "button", class: "quiet", "aria-label": `Take ${line.title} out of the charts`, on: { click: () => others.toggle(line.id) } }, icon("close")));
    }));
  }

  menu.addEventListener("toggle", () => { if (menu.open) { list(); filter.focus(); } });
  menu.addEventListener("keydown", (event) => { if (event.key === "Escape") { menu.open = false; menu.querySelector("summary").focus(); } });
  document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) menu.open = false; }, { signal });
  others.addEventListener("change", () => { chips(); if (!menu.open) list(); }, { signal });
  addEventListener("themechange", chips, { signal });
  chips();
  return h("div", { class: "legend" }, names, menu);
}
