// One plot of plotly: loaded when the first is seen, drawn only while in view, in the theme's colours.
import { h } from "./dom.js";
import { fail } from "./notice.js";
import { colour } from "./theme.js";

const figures = new Map();
let library = null;

/** plotly itself: four megabytes that a list of runs does not need. */
export function plotly() {
  library ??= new Promise((loaded, failed) => {
    const script = h("script", { src: "/assets/plotly.js", on: {
      load: () => loaded(window.Plotly),
      error: () => {
        library = null;
        failed(new Error("The charts could not be loaded from the server."));
      },
    } });
    document.head.append(script);
  });
  return library;
}

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) figures.get(entry.target)?.seen(entry.isIntersecting);
}, { rootMargin: "240px" });

const resized = new ResizeObserver((entries) => {
  for (const entry of entries) figures.get(entry.target)?.invalidate();
});

addEventListener("themechange", () => figures.forEach((figure) => figure.invalidate()));

/** A place for a plot. `build()` gives `{data, layout, label}`, or null while there is nothing to draw. */
export class Figure {
  #visible = false;
  #drawn = false;
  #waiting = false;

  constructor(build, signal, listeners = {}) {
    this.build = build;
    this.listeners = listeners;
    this.element = h("div", { class: "plot", role: "img" });
    figures.set(this.element, this);
    inView.observe(this.element);
    resized.observe(this.element);
    signal.addEventListener("abort", () => this.remove());
  }

  /** Draws again at the next frame, if somebody sees it. */
  invalidate() {
    if (!this.#visible || this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => this.#draw().catch(fail).finally(() => { this.#waiting = false; }));
  }

  seen(visible) {
    if (visible === this.#visible) return;
    this.#visible = visible;
    if (visible) this.invalidate();
    else this.#purge();
  }

  remove() {
    inView.unobserve(this.element);
    resized.unobserve(this.element);
    figures.delete(this.element);
    this.#purge();
  }

  #purge() {
    if (this.#drawn) window.Plotly.purge(this.element);
    this.#drawn = false;
    delete this.element.dataset.drawn;
  }

  async #draw() {
    const library = await plotly();
    if (!this.#visible || !this.element.isConnected || !this.element.clientWidth) return;
    const figure = this.build();
    if (!figure) return;
    if (figure.label) this.element.setAttribute("aria-label", figure.label);
    const size = { width: this.element.clientWidth, height: this.element.clientHeight };
    await library.react(this.element, figure.data, { ...base(), ...figure.layout, ...size }, { displayModeBar: false, doubleClick: false, showTips: false });
    if (!this.#drawn) for (const [event, listener] of Object.entries(this.listeners)) this.element.on(event, listener);
    this.#drawn = true;
    this.element.dataset.drawn = "";
  }
}

/** Fingers scroll the page; a mouse zooms. */
export const touch = () => matchMedia("(pointer: coarse)").matches;

/** What all plots have in common. */
function base() {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("muted") },
    margin: { l: 46, r: 8, t: 6, b: 28 },
    showlegend: false,
    dragmode: touch() ? false : "zoom",
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("text"), size: 11 }, namelength: -1 },
  };
}

/** An axis in the theme's colours. */
export function axis(more = {}) {
  return {
    gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, automargin: false, fixedrange: touch(),
    tickcolor: colour("line"), ticks: "outside", ticklen: 3, nticks: 6, ...more,
  };
}

/** The scale of numbers that only grow: from the page's own colour to the accent and beyond. */
export function sequential() {
  return document.documentElement.dataset.theme === "dark"
    ? [[0, "#171b21"], [0.2, "#1d2f5c"], [0.45, "#3157b8"], [0.7, "#6f9bf5"], [0.88, "#b9d0ff"], [1, "#f4f8ff"]]
    : [[0, "#f7f9fd"], [0.2, "#d3e0fa"], [0.45, "#86a9ee"], [0.7, "#3f6fd4"], [0.88, "#1c4099"], [1, "#0d1f52"]];
}

/** The same for shares, most of which are small: the pale colours pass quickly. */
export const shares = () => sequential().map(([at, tone]) => [at ** 2, tone]);

/** The scale of numbers around zero. */
export function diverging() {
  return document.documentElement.dataset.theme === "dark"
    ? [[0, "#8fb4ff"], [0.25, "#3558ab"], [0.5, "#171b21"], [0.75, "#a2541b"], [1, "#ffb27a"]]
    : [[0, "#1b4aa8"], [0.25, "#86aaea"], [0.5, "#f8f9fb"], [0.75, "#ec9c5f"], [1, "#a64406"]];
}

/** The bar that explains a heat map's colours. */
export function colourbar(more = {}) {
  return { thickness: 10, len: 1, outlinewidth: 0, tickfont: { size: 10, color: colour("muted") }, nticks: 5, ...more };
}
