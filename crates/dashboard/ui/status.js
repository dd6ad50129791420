// How a run stands, in a word and a colour; and a run's own colour in charts.
import { h } from "./dom.js";
import { colour } from "./theme.js";

const MEANING = {
  training: "It is training now.",
  completed: "It did all its steps.",
  stopped: "A hook ended it in good order.",
  interrupted: "It was interrupted; `train --resume` goes on.",
  error: "It failed.",
};

/** The pill with a run's status. */
export function pill(run) {
  const status = run.status ?? "unreadable";
  const text = run.killed ? "killed" : status;
  const meaning = run.killed ? "Its process is gone without a word: killed, or the machine went down. `train --resume` goes on." : MEANING[status];
  return h("span", { class: "pill", data: { status: run.killed ? "killed" : status }, title: run.problem ?? meaning ?? status },
    h("span", { class: "dot", "aria-hidden": "true" }), run.killed ? `interrupted · ${text}` : text);
}

/** The pill of a run in which a hook failed. */
export function degradedPill(run) {
  return run.degraded ? h("span", { class: "pill", data: { status: "degraded" }, title: "A hook failed, or was switched off because it kept failing." }, "a hook failed") : null;
}

const PALETTE = 8;
const given = new Map();

/** Gives every run a colour of its own, the oldest first, so that it keeps it from page to page. */
export function paint(runs) {
  for (const run of [...runs].reverse()) if (!given.has(run.id)) given.set(run.id, given.size % PALETTE);
}

/** The colours of the runs in one chart: their own, or the next free one where two would have the same. */
export function colours(ids) {
  const taken = new Set();
  return new Map(ids.map((id) => {
    let at = given.get(id) ?? 0;
    for (let tried = 0; taken.has(at) && tried < PALETTE; tried += 1) at = (at + 1) % PALETTE;
    taken.add(at);
    return [id, colour(`run-${at}`)];
  }));
}
