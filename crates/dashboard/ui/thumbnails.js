// All heads of an attention pattern at a glance; a click or Enter shows one of them large.
import { fill, h } from "./dom.js";
import { fail } from "./notice.js";
import { shares } from "./plot.js";

const MOST_HEADS = 32;

export class Thumbnails {
  #batch = null;
  #drawn = [];

  constructor(view, heads, signal, choose) {
    this.view = view;
    this.heads = Math.min(heads, MOST_HEADS);
    this.buttons = Array.from({ length: this.heads }, (_, head) => {
      const canvas = h("canvas", { width: 1, height: 1, "aria-hidden": "true" });
      return h("button", { type: "button", class: "thumb", "aria-label": `Head ${head}`, on: { click: () => choose(head) } }, canvas, h("span", {}, `head ${head}`));
    });
    this.element = h("figure", { class: "card" }, h("figcaption", {}, h("span", { class: "name" }, "All heads"), heads > MOST_HEADS && h("span", { class: "muted small" }, `the first ${MOST_HEADS} of ${heads}`)), h("div", { class: "thumbs" }, this.buttons));
    addEventListener("themechange", () => this.#paint(), { signal });
  }

  /** Marks the head of this index, and draws all heads of its example. */
  show([batch, head]) {
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === head));
    if (batch === this.#batch) return;
    this.#batch = batch;
    this.#load(batch).catch(fail);
  }

  async #load(batch) {
    const answers = await Promise.all(this.buttons.map((_, head) => this.view.load([batch, head])));
    if (batch !== this.#batch) return;
    this.#drawn = answers.map((answer) => answer.z);
    this.#paint();
  }

  #paint() {
    const stops = shares().map(([at, hex]) => [at, [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16))]);
    this.#drawn.forEach((z, head) => {
      const canvas = h("canvas", { width: z[0].length, height: z.length, "aria-hidden": "true" });
      const context = canvas.getContext("2d");
      const image = context.createImageData(canvas.width, canvas.height);
      z.flat().forEach((value, at) => image.data.set([...shade(stops, value ?? 0), 255], at * 4));
      context.putImageData(image, 0, 0);
      fill(this.buttons[head], canvas, h("span", {}, `head ${head}`));
    });
  }
}

/** The colour of a share between 0 and 1. */
function shade(stops, share) {
  const value = Math.max(0, Math.min(1, share));
  const at = Math.max(1, stops.findIndex(([end]) => end >= value));
  const [[from, a], [to, b]] = [stops[at - 1], stops[at]];
  return a.map((start, channel) => Math.round(start + ((b[channel] - start) * (value - from)) / (to - from)));
}
