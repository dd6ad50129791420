// The list of runs: sortable, with a filter, kept up to date.
import { get } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { count, duration, moment, number, short } from "./format.js";
import { follow } from "./live.js";
import { link } from "./router.js";
import { degradedPill, paint, pill } from "./status.js";

const COLUMNS = [
  { title: "Run", key: (run) => (run.name ?? run.id).toLowerCase() },
  { title: "Status", key: (run) => run.status ?? "" },
  { title: "Best metric", key: (run) => run.score?.value },
  { title: "Steps", key: (run) => run.steps, number: true },
  { title: "Duration", key: (run) => run.seconds, number: true },
  { title: "Started", key: (run) => run.started ?? "" },
  { title: "Configuration", key: (run) => run.config_hash ?? "" },
  { title: "Commit", key: (run) => run.commit ?? "" },
];
const wanted = { column: 5, down: true, filter: "" };
const chosen = new Set();

export async function listPage({ main, about, signal }) {
  let { runs } = await get("/api/runs", {}, signal);
  document.title = "Runs · Tenterhook";
  const summary = h("p", { class: "muted", role: "status" });
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter runs by name, status, hash or metric", value: wanted.filter,
    on: { input: () => { wanted.filter = filter.value; update(); } } });
  const compare = h("button", { type: "button", class: "primary", on: { click: open } });
  const heads = COLUMNS.map((column, at) => h("th", { scope: "col", class: column.number && "number" },
    h("button", { type: "button", class: "sort", on: { click: () => sort(at) } }, column.title)));
  const body = h("tbody");
  const runTable = h("table", { class: "runs cards" }, h("caption", { class: "hidden" }, "Runs"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "check" }, h("span", { class: "hidden" }, "Compare")), heads)), body);
  const frame = h("div", { class: "scroll", role: "region", "aria-label": "Runs", tabindex: "0" }, runTable);
  const nothing = h("div");
  const rows = new Map();

  fill(main, h("div", { class: "head" }, h("h1", {}, "Runs"), summary, h("span", { class: "grow" }), compare, filter), frame, nothing);
  update();
  follow("/api/events", { runs: (event) => { runs = event.runs; update(); } }, signal);

  function sort(at) {
    wanted.down = wanted.column === at ? !wanted.down : at >= 2;
    wanted.column = at;
    update();
  }

  function open() {
    const [first, ...others] = runs.map((run) => run.id).filter((id) => chosen.has(id));
    location.hash = link(first, "metrics", others);
  }

  function update() {
    paint(runs);
    const known = new Set(runs.map((run) => run.id));
    for (const id of chosen) if (!known.has(id)) chosen.delete(id);
    const shown = order(runs.filter(matches));
    shown.forEach((run, at) => {
      const row = rows.get(run.id) ?? h("tr", { data: { run: run.id } });
      rows.set(run.id, row);
      // A row that says the same stays as it is: nobody's click gets lost.
      const said = JSON.stringify(run);
      if (row.said !== said) fill(row, cells(run, choice));
      row.said = said;
      if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
    });
    while (body.children.length > shown.length) body.lastChild.remove();
    heads.forEach((head, at) => head.setAttribute("aria-sort", at !== wanted.column ? "none" : wanted.down ? "descending" : "ascending"));
    summary.textContent = summarise(runs, shown.length);
    choice();
    frame.hidden = shown.length === 0;
    fill(nothing, shown.length ? null : runs.length ? empty("No run matches the filter.") : empty(`There are no runs in ${about.runs_dir} yet.`, "Train one, and it appears here:",
      "tenterhook demo\ntenterhook config init > run.toml && tenterhook train run.toml"));
  }

  function choice() {
    compare.textContent = chosen.size > 1 ? `Compare ${chosen.size} runs` : "Compare";
    compare.disabled = chosen.size < 2;
    compare.title = chosen.size < 2 ? "Tick two runs or more" : "";
  }
}

function matches(run) {
  const text = [run.id, run.name, run.status, run.killed && "killed", run.degraded && "degraded", run.parent, run.score?.name, run.config_hash, run.commit].join(" ").toLowerCase();
  return wanted.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function order(runs) {
  const { key } = COLUMNS[wanted.column];
  const sign = wanted.down ? -1 : 1;
  return runs.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y || (x ?? null) === (y ?? null)) return 0;
    if (x === null || x === undefined) return 1; // what is not known comes last in both directions
    if (y === null || y === undefined) return -1;
    return x < y ? -sign : sign;
  });
}

function summarise(runs, shown) {
  const by = new Map();
  for (const run of runs) by.set(run.status ?? "unreadable", (by.get(run.status ?? "unreadable") ?? 0) + 1);
  const parts = [...by].map(([status, many]) => `${many} ${status}`);
  return [shown === runs.length ? `${runs.length} in all` : `${shown} of ${runs.length}`, ...parts].join(" · ");
}

function cells(run, choice) {
  const name = run.name ?? run.id;
  const box = h("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `Compare ${name}`,
    on: { change: () => { box.checked ? chosen.add(run.id) : chosen.delete(run.id); choice(); } } });
  const score = run.score && h("span", {}, h("span", { class: "value" }, number(run.score.value)), " ",
    h("span", { class: "muted" }, run.score.name, run.score.best ? "" : " (last)"));
  const under = [run.id !== name && run.id, run.parent && `forked from ${run.parent}`].filter(Boolean).join(" · ");
  const cell = (title, attributes, ...children) => h("td", { data: { label: title }, ...attributes }, ...children);
  return [
    h("td", { class: "check" }, box),
    h("th", { scope: "row" }, h("a", { href: link(run.id) }, name), under && h("div", { class: "muted small" }, under), run.problem && h("div", { class: "bad small" }, run.problem)),
    cell("Status", {}, pill(run), degradedPill(run)),
    cell("Best metric", { title: run.score && `at step ${run.score.step}` }, score ?? "–"),
    cell("Steps", { class: "number" }, count(run.steps)),
    cell("Duration", { class: "number" }, duration(run.seconds)),
    cell("Started", { title: run.started }, moment(run.started)),
    cell("Configuration", { class: "mono", title: run.config_hash }, short(run.config_hash)),
    cell("Commit", { class: "mono", title: run.dirty ? `${run.commit}, with changes that are not committed` : run.commit }, `${short(run.commit)}${run.dirty ? "*" : ""}`),
  ];
}
