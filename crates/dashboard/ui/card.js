// The chart of one metric: this run and those laid over it.
import { fill, h, icon } from "./dom.js";
import { count, number, plain, shorten } from "./format.js";
import { axis, Figure } from "./plot.js";
import { smoothed } from "./series.js";

const FEW = 40;

export class Card {
  constructor(name, { run, others, view, zoom }, signal) {
    Object.assign(this, { name, run, others, view });
    this.figure = new Figure(() => this.#build(), signal, { plotly_relayout: (change) => this.#zoomed(change, zoom), plotly_doubleclick: () => zoom(null) });
    this.last = h("span", { class: "value" });
    this.note = h("span", { class: "muted small" });
    this.said = h("p", { class: "said", hidden: true });
    const wide = h("button", { type: "button", class: "quiet", "aria-label": `Enlarge ${name}`, "aria-pressed": "false", on: { click: () => {
      const on = this.element.classList.toggle("wide");
      wide.setAttribute("aria-pressed", on);
      fill(wide, icon(on ? "shrink" : "expand"));
    } } }, icon("expand"));
    this.element = h("figure", { class: "card chart", data: { metric: name } },
      h("figcaption", {}, h("span", { class: "name", title: name }, name), this.note, h("span", { class: "grow" }), this.last, wide), this.figure.element, this.said);
  }

  update() {
    this.figure.invalidate();
  }

  #build() {
    const { view, name } = this;
    const lines = this.others.lines(view.range);
    const drawn = lines.map((line) => ({ line, series: line.store.get(name) }));
    this.#tell(drawn);
    if (drawn.every(({ series }) => !series?.step.length)) return null;
    const unit = timeUnit(drawn);
    const data = drawn.flatMap(({ line, series }) => (series?.step.length ? traces(line, series, view, unit) : []));
    return { data, layout: this.#layout(unit, drawn.some(({ series }) => series && greatest(series.value) >= 1e4)), label: this.#label(drawn) };
  }

  #tell(drawn) {
    const [{ series }] = drawn;
    const metric = this.run.info.metrics.find((one) => one.name === this.name);
    this.last.textContent = metric ? number(metric.last) : "";
    this.note.textContent = series?.width > 1 ? `÷${count(series.width)}` : "";
    this.note.title = series?.width > 1 ? `Each point is the mean of ${series.width} recorded ones, in a band from the least to the greatest. Zoom in for more.` : "";
    const problem = series?.problem ?? (series && drawn.every((one) => one.series && !one.series.step.length) ? "No values in these steps." : null);
    this.said.hidden = !problem;
    this.said.textContent = problem ?? "";
    this.figure.element.classList.toggle("loading", !series);
  }

  #layout(unit, large) {
    const { view } = this;
    const x = {
      step: { range: view.range && view.range[1] < Number.MAX_SAFE_INTEGER ? view.range : undefined, tickformat: "~s", hoverformat: ",d" },
      relative: { ticksuffix: ` ${unit.name}`, hoverformat: ".2f" },
      wall: { type: "date" },
    }[view.x];
    return { hovermode: "x unified", xaxis: axis({ nticks: 5, ...x }), yaxis: axis({ type: view.log ? "log" : "linear", fixedrange: true, exponentformat: large ? "SI" : "e", hoverformat: ".5~g" }) };
  }

  #label(drawn) {
    const said = drawn.filter(({ series }) => series?.step.length).map(({ line, series }) => {
      const values = series.value.filter((value) => value !== null);
      return `${line.title}: ${count(series.width > 1 ? series.count : series.step.length)} values from step ${series.step[0]} to ${series.step.at(-1)}, least ${number(least(series.min ?? values))}, greatest ${number(greatest(series.max ?? values))}, last ${number(values.at(-1))}`;
    });
    return `Chart of ${this.name}. ${said.join(". ")}`;
  }

  // A zoom asks the server for these steps; where the axis is time, the steps that were at that time.
  #zoomed(change, zoom) {
    if (change["xaxis.range[0]"] === undefined) return;
    const ends = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (this.view.x === "step") return zoom([Math.max(0, Math.floor(ends[0])), Math.ceil(ends[1])]);
    const [line] = this.others.lines(this.view.range);
    const series = line.store.get(this.name);
    const seconds = this.view.x === "wall" ? ends.map((end) => Date.parse(String(end).replace(" ", "T")) / 1000) : ends.map((end) => line.started + end * timeUnit([{ line, series }]).seconds);
    const inside = series.step.filter((_, at) => series.time[at] >= seconds[0] && series.time[at] <= seconds[1]);
    if (inside.length > 1) zoom([inside[0], inside.at(-1)]);
    else this.update();
  }
}

const least = (values) => values.reduce((a, b) => (b !== null && b < a ? b : a), Infinity);
const greatest = (values) => values.reduce((a, b) => (b !== null && b > a ? b : a), -Infinity);

function timeUnit(drawn) {
  const longest = Math.max(0, ...drawn.map(({ line, series }) => (series?.time.at(-1) ?? line.started) - line.started));
  if (longest < 180) return { name: "s", seconds: 1 };
  return longest < 10800 ? { name: "min", seconds: 60 } : { name: "h", seconds: 3600 };
}

function traces(line, series, view, unit) {
  const x = {
    step: () => series.step,
    relative: () => series.time.map((time) => (time - line.started) / unit.seconds),
    wall: () => series.time.map((time) => local(time)),
  }[view.x]();
  const silent = { x, type: "scatter", mode: "lines", hoverinfo: "skip" };
  const single = x.length <= FEW;
  const main = { x, type: "scatter", mode: single ? "lines+markers" : "lines", name: plain(shorten(line.title, 40)), marker: { size: 4, color: line.colour }, cliponaxis: !single, hovertemplate: "%{y:.5~g}" };
  const faded = tint(line.colour, 0.16);
  const band = series.min && [
    { ...silent, y: series.min, line: { width: 0 } },
    { ...silent, y: series.max, line: { width: 0 }, fill: "tonexty", fillcolor: faded },
  ];
  if (!view.smooth) return [...(band ?? []), { ...main, y: series.value, line: { color: line.colour, width: 1.6 } }];
  return [
    ...(band ?? []),
    { ...silent, y: series.value, line: { color: tint(line.colour, 0.28), width: 1 } },
    { ...main, y: smoothed(series.value, view.smooth), line: { color: line.colour, width: 1.9 } },
  ];
}

/** plotly draws dates as if they were UTC; the reader's own clock is meant. */
function local(seconds) {
  return new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}

/** A colour `#rrggbb` with an opacity. */
function tint(hex, opacity) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}
