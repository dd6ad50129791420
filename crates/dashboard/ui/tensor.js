// One tensor: two of its axes as a heat map, the others chosen by index.
import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { extent, hover, scale } from "./heatmap.js";
import { fail } from "./notice.js";
import { axis, colourbar, Figure, shares } from "./plot.js";
import { colour } from "./theme.js";
import { Thumbnails } from "./thumbnails.js";

/** What the axes of a tensor are called, by the kind of its point. */
function axes({ name, point, shape }) {
  const where = point ?? name;
  if (/hook_(pattern|attn_scores)/.test(where) && shape.length === 4) return ["batch", "head", "query", "key"];
  if (/hook_(q|k|v|z|rot_q|rot_k)$/.test(where) && shape.length === 4) return ["batch", "position", "head", "dimension"];
  if (shape.length === 3) return ["batch", "position", "neuron"];
  const leading = shape.slice(0, -2).map((_, at) => (at === 0 ? "batch" : `axis ${at}`));
  return [...leading, ...["row", "column"].slice(-Math.min(2, shape.length))];
}

export class TensorView {
  #answer = null;

  constructor(tensor, url, signal) {
    this.tensor = tensor;
    this.names = axes(tensor);
    this.index = tensor.shape.slice(0, -2).map(() => 0);
    this.load = (index) => get(url, { name: tensor.name, index: index.length ? index.join(",") : null }, signal);
    this.attention = this.names.at(-1) === "key";
    this.map = new Figure(() => this.#answer && this.#heat(), signal);
    this.map.element.classList.add(this.attention ? "square" : "tall");
    this.norms = new Figure(() => this.#answer && this.#bars(), signal);
    this.note = h("span", { class: "muted small" });
    this.choosers = this.index.map((_, at) => this.#chooser(at));
    const title = this.attention ? "Attention: who looks at whom" : this.names.at(-2) === "position" ? "Activations of every token" : "Values";
    const positions = this.names.at(-2) === "position";
    const thumbs = this.attention && new Thumbnails(this, tensor.shape[1], signal, (head) => this.#choose(1, head));
    this.thumbs = thumbs || null;
    this.element = h("div", { class: "stack" }, h("div", { class: "toolbar" }, this.choosers.map((chooser) => chooser.element)),
      h("div", { class: this.attention || positions ? "halves" : "stack" },
        h("figure", { class: "card" }, h("figcaption", {}, h("span", { class: "name" }, title), this.note), this.map.element),
        thumbs && thumbs.element,
        positions && h("figure", { class: "card" }, h("figcaption", {}, h("span", { class: "name" }, "Norm of every token")), this.norms.element)));
    this.norms.element.classList.add("tall");
    this.#show();
  }

  #chooser(at) {
    const most = this.tensor.shape[at] - 1;
    const field = h("input", { type: "number", min: 0, max: most, value: 0, class: "index", "aria-label": `${this.names[at]}, 0 to ${most}`, on: { change: () => this.#choose(at, Number(field.value)) } });
    const slider = h("input", { type: "range", min: 0, max: most, value: 0, "aria-label": `${this.names[at]}, 0 to ${most}`, on: { input: () => this.#choose(at, Number(slider.value)) } });
    return { set: (value) => { field.value = value; slider.value = value; }, element: h("span", { class: "field" }, this.names[at], most > 0 && slider, field, h("span", { class: "muted small" }, `of ${count(most + 1)}`)) };
  }

  #choose(at, value) {
    this.index[at] = Math.max(0, Math.min(this.tensor.shape[at] - 1, Math.round(value) || 0));
    this.choosers[at].set(this.index[at]);
    this.#show();
  }

  async #show() {
    const asked = this.index.join(",");
    this.thumbs?.show(this.index);
    try {
      const answer = await this.load(this.index);
      if (asked !== this.index.join(",")) return;
      this.#answer = answer;
      const whole = answer.shown_rows === answer.rows && answer.shown_cols === answer.cols;
      this.note.textContent = `${count(answer.rows)} × ${count(answer.cols)}, mean ${number(answer.mean)}, from ${number(answer.min)} to ${number(answer.max)}${whole ? "" : `; shown as means over blocks, ${answer.shown_rows} × ${answer.shown_cols}`}`;
      this.map.invalidate();
      this.norms.invalidate();
    } catch (error) {
      fill(this.note, error.message);
      fail(error);
    }
  }

  // Where the server took means over blocks, a row on the screen begins at this row of the tensor.
  #places() {
    const { rows, cols, shown_rows: down, shown_cols: across } = this.#answer;
    return [Array.from({ length: down }, (_, at) => Math.floor((at * rows) / down)), Array.from({ length: across }, (_, at) => Math.floor((at * cols) / across))];
  }

  #heat() {
    const [ys, xs] = this.#places();
    // Nobody looks at what comes later: those places stay empty.
    const z = this.attention ? this.#answer.z.map((row, y) => row.map((value, x) => (value === 0 && xs[x] > ys[y] ? null : value))) : this.#answer.z;
    const [down, across] = [this.names.at(-2) ?? "row", this.names.at(-1) ?? "column"];
    const colours = this.attention && !/scores/.test(this.tensor.name) ? { colorscale: shares(), zmin: 0, zmax: 1 } : scale(extent(z) ?? [0, 1]);
    const title = (text) => ({ text, font: { size: 11 }, standoff: 6 });
    return {
      data: [{ type: "heatmap", x: xs, y: ys, z, hoverinfo: "text", text: hover(z, (y) => `${down} ${ys[y]}`, (x) => `${across} ${xs[x]}`), colorbar: colourbar(), ...colours }],
      layout: {
        margin: { l: 46, r: 8, t: 6, b: 40 },
        xaxis: axis({ title: title(across), showgrid: false, tickformat: "d", constrain: "domain", fixedrange: true }),
        yaxis: axis({ title: title(down), showgrid: false, tickformat: "d", autorange: "reversed", fixedrange: true, ...(this.attention ? { scaleanchor: "x", constrain: "domain" } : {}) }),
      },
      label: `Heat map of ${this.tensor.name} at index ${this.index.join(", ") || "all"}: ${down} by ${across}, from ${number(this.#answer.min)} to ${number(this.#answer.max)}`,
    };
  }

  #bars() {
    const { z, cols, shown_cols: across } = this.#answer;
    const [ys] = this.#places();
    // Means over blocks of neurons have smaller norms than the neurons: then it is the root of the mean square of what is shown.
    const norms = z.map((row) => Math.sqrt(row.reduce((sum, value) => sum + (value ?? 0) ** 2, 0)));
    return {
      data: [{ type: "bar", orientation: "h", y: ys, x: norms, marker: { color: colour("accent") }, hovertemplate: "position %{y}<br><b>%{x:.5~g}</b><extra></extra>" }],
      layout: { bargap: 0.15, margin: { l: 46, r: 12, t: 6, b: 40 }, xaxis: axis({ rangemode: "tozero", fixedrange: true, title: { text: across === cols ? "L2 norm" : "L2 norm of the means", font: { size: 11 }, standoff: 6 } }), yaxis: axis({ autorange: "reversed", tickformat: "d", showgrid: false, fixedrange: true }) },
      label: `Norm of every token: from ${number(Math.min(...norms))} to ${number(Math.max(...norms))}`,
    };
  }
}
