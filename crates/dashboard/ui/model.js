// One run as the page knows it: its record, its numbers, and what comes in while it trains.
import { get, path } from "./api.js";
import { follow } from "./live.js";
import { fail } from "./notice.js";
import { SeriesStore } from "./series.js";

/** Tells `info` when the record changed, `series` (detail: names) when numbers came, `over` when the run ended. */
export class RunModel extends EventTarget {
  info = null;
  #greeted = false;

  constructor(id, signal) {
    super();
    this.id = id;
    this.signal = signal;
    this.series = new SeriesStore(id, signal, (names) => this.#tell("series", names));
  }

  async load() {
    this.#take(await get(path(this.id), {}, this.signal));
    if (this.info.live) this.#follow();
    else this.#wait();
    if (this.info.loading !== null) this.#reload();
  }

  #tell(name, detail = null) {
    if (!this.signal.aborted) this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #take(info) {
    this.info = { config: this.info?.config, loading: null, ...info };
    this.#tell("info");
  }

  // A long log is still being read: what is known of its metrics grows.
  async #reload() {
    while (this.info.loading !== null && !this.signal.aborted) {
      await new Promise((passed) => setTimeout(passed, 1000));
      try {
        this.#take(await get(path(this.id), {}, this.signal));
      } catch (error) {
        fail(error);
      }
    }
  }

  #follow() {
    follow(path(this.id, "events"), {
      hello: () => {
        // What came while nobody was connected is asked for.
        if (this.#greeted) this.series.refetch();
        this.#greeted = true;
      },
      rows: ({ series }) => {
        this.#learn(series);
        this.series.append(series);
      },
      refetch: () => this.series.refetch(),
      run: (info) => this.#take(info),
      end: () => {
        this.#ended().catch(fail);
        return "close";
      },
    }, this.signal);
  }

  async #ended() {
    this.#take(await get(path(this.id), {}, this.signal));
    this.series.refetch();
    this.#tell("over");
    this.#wait();
  }

  // A run that is over may be resumed: the list of runs says so.
  #wait() {
    follow("/api/events", {
      runs: ({ runs }) => {
        if (!runs.some((run) => run.id === this.id && run.live)) return undefined;
        this.load().catch(fail);
        return "close";
      },
    }, this.signal);
  }

  // Metrics that nobody had recorded before, and the last value of the others.
  #learn(series) {
    const metrics = new Map(this.info.metrics.map((metric) => [metric.name, metric]));
    let grown = false;
    for (const [name, { step, value }] of Object.entries(series)) {
      if (!step.length) continue;
      grown ||= !metrics.has(name);
      const old = metrics.get(name) ?? { name, count: 0 };
      metrics.set(name, { ...old, count: old.count + step.length, last: value.at(-1), step: step.at(-1) });
    }
    const steps = Math.max(this.info.steps ?? 0, ...[...metrics.values()].map((metric) => metric.step));
    this.info = { ...this.info, steps, metrics: [...metrics.values()] };
    this.#tell(grown ? "info" : "progress");
  }
}
