// The recorded numbers of one run, as far as somebody looks at them.
import { get, path } from "./api.js";
import { fail } from "./notice.js";

const NAMES_AT_ONCE = 20;
const CHARACTERS_AT_ONCE = 3000;
const POINTS = 1500;
const MOST_POINTS = 4000;
const NOTHING = Object.freeze({ step: [], value: [], time: [], count: 0, width: 1 });

/** Series by name, asked for in few requests, and kept up to date with the rows of a live run. */
export class SeriesStore {
  #data = new Map();
  #queue = new Set();
  #pending = new Set();
  #late = new Map();
  #timer = null;

  /** `changed(names)` is called when numbers came; `range` is `[from, to]` in steps, at the best resolution the server has. */
  constructor(run, signal, changed, range = null) {
    Object.assign(this, { run, signal, changed, range, loading: null });
  }

  /** The series, or undefined while it is being asked for. */
  get(name) {
    if (!this.#data.has(name)) this.#ask(name);
    return this.#data.get(name);
  }

  /** Everything is asked for again; what is there stays until the answer comes. */
  refetch() {
    for (const name of this.#data.keys()) this.#ask(name, true);
  }

  /** New points of a live run. */
  append(rows) {
    const names = [];
    for (const [name, fresh] of Object.entries(rows)) {
      if (this.#pending.has(name)) this.#late.set(name, [...(this.#late.get(name) ?? []), fresh]);
      else if (this.#data.has(name)) {
        this.#extend(name, fresh);
        names.push(name);
      }
    }
    if (names.length) this.changed(names);
  }

  #extend(name, fresh) {
    const old = this.#data.get(name);
    const last = old.step.at(-1) ?? -1;
    const from = fresh.step.findIndex((step) => step > last);
    if (from < 0) return;
    const series = { ...old, count: old.count + fresh.step.length - from };
    for (const key of ["step", "value", "time"]) series[key] = old[key].concat(fresh[key].slice(from));
    if (old.min) for (const key of ["min", "max"]) series[key] = old[key].concat(fresh.value.slice(from));
    this.#data.set(name, series);
    if (series.step.length > MOST_POINTS) this.#ask(name, true);
  }

  #ask(name, again = false) {
    if (this.signal.aborted || (this.#pending.has(name) && !again)) return;
    this.#queue.add(name);
    this.#timer ??= setTimeout(() => this.#flush(), 30);
  }

  #flush() {
    this.#timer = null;
    let names = [];
    let characters = 0;
    const send = () => {
      if (names.length) this.#fetch(names);
      names = [];
      characters = 0;
    };
    for (const name of this.#queue) {
      const length = encodeURIComponent(name).length + 6;
      if (names.length === NAMES_AT_ONCE || characters + length > CHARACTERS_AT_ONCE) send();
      names.push(name);
      characters += length;
      this.#pending.add(name);
    }
    this.#queue.clear();
    send();
  }

  async #fetch(names) {
    const [from, to] = this.range ?? [];
    try {
      const answer = await get(path(this.run, "series"), { name: names, from, to, points: this.range ? MOST_POINTS : POINTS }, this.signal);
      this.loading = answer.loading;
      for (const name of names) this.#data.set(name, answer.series[name] ?? NOTHING);
      if (answer.loading !== null) setTimeout(() => names.forEach((name) => this.#ask(name, true)), 1000);
    } catch (error) {
      for (const name of names) if (!this.#data.has(name)) this.#data.set(name, { ...NOTHING, problem: error.message });
      fail(error);
    }
    for (const name of names) {
      this.#pending.delete(name);
      for (const fresh of this.#late.get(name) ?? []) this.#extend(name, fresh);
      this.#late.delete(name);
    }
    if (!this.signal.aborted) this.changed(names);
  }
}

/** The exponential moving average, corrected for its start, as TensorBoard draws it. */
export function smoothed(values, weight) {
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}
