// One run: what it is, and its tabs.
import { capturesTab } from "./captures.js";
import { checkpointsTab } from "./checkpoints.js";
import { configTab } from "./config.js";
import { empty, fill, h } from "./dom.js";
import { count, duration, moment, number, percent, short } from "./format.js";
import { heatmapsTab } from "./heatmaps.js";
import { histogramsTab } from "./histograms.js";
import { hooksTab } from "./hooks.js";
import { metricsTab } from "./metrics.js";
import { RunModel } from "./model.js";
import { fail } from "./notice.js";
import { Others } from "./others.js";
import { plotly } from "./plot.js";
import { recordTab } from "./record.js";
import { amend, link } from "./router.js";
import { degradedPill, pill } from "./status.js";
import { tabs } from "./tabs.js";

const TABS = [
  { id: "metrics", title: "Metrics", show: metricsTab },
  { id: "layers", title: "Layers", show: heatmapsTab },
  { id: "histograms", title: "Histograms", show: histogramsTab },
  { id: "hooks", title: "Hooks", show: hooksTab },
  { id: "captures", title: "Captures", show: capturesTab },
  { id: "checkpoints", title: "Checkpoints", show: checkpointsTab },
  { id: "config", title: "Configuration", show: configTab },
  { id: "record", title: "Record", show: recordTab },
];

/** Shows a run. Returns what tells whether another address is still this page. */
export async function runPage({ main, place, about, signal }) {
  const run = new RunModel(place.run, signal);
  plotly().catch(fail); // on its way while the run is asked for
  await run.load();
  const others = new Others(run, place.parameters.getAll("with"), signal);
  await others.load();
  const page = { run, others, about };
  let shown = null;
  const head = h("div", { class: "run-head" });
  const bar = tabs("Parts of the run", TABS, known(place.tab), (tab) => { location.hash = link(run.id, tab, others.ids); });

  fill(main, head, bar.list, bar.panel);
  header();
  tab(known(place.tab));
  run.addEventListener("info", header);
  run.addEventListener("progress", header);
  others.addEventListener("change", () => amend(link(run.id, shown.id, others.ids)));
  const clock = setInterval(() => { if (run.info.live) header(); }, 1000);
  signal.addEventListener("abort", () => clearInterval(clock));

  function header() {
    const { info } = run;
    document.title = `${info.name ?? info.id} · Tenterhook`;
    // Where the reader is inside it, it is not changed under the fingers.
    if (!head.contains(document.activeElement)) fill(head, heading(info), facts(info), warnings(info));
  }

  function tab(id) {
    shown?.controller.abort();
    const controller = new AbortController();
    shown = { id, controller };
    signal.addEventListener("abort", () => controller.abort());
    bar.select(id, false);
    fill(bar.panel);
    bar.panel.setAttribute("aria-busy", "true");
    // A tab that asks the server for something gives a promise.
    Promise.resolve(TABS.find((one) => one.id === id).show(page, bar.panel, controller.signal)).catch((error) => {
      if (error.name === "AbortError") return;
      fail(error);
      fill(bar.panel, empty("This could not be shown.", error.message));
    }).finally(() => { if (shown.controller === controller) bar.panel.removeAttribute("aria-busy"); });
  }

  return (next) => {
    const same = next.page === "run" && next.run === run.id && next.parameters.getAll("with").join("\n") === others.ids.join("\n");
    if (same && known(next.tab) !== shown.id) tab(known(next.tab));
    return same;
  };
}

const known = (tab) => (TABS.some((one) => one.id === tab) ? tab : "metrics");

function heading(info) {
  return h("div", { class: "head" }, h("h1", {}, h("a", { href: "#/", class: "muted up" }, "Runs"), h("span", { class: "muted slash", "aria-hidden": "true" }, "/"), info.name ?? info.id),
    pill(info), degradedPill(info));
}

function facts(info) {
  const share = info.total_steps ? Math.min(1, (info.steps ?? 0) / info.total_steps) : null;
  const seconds = info.live ? (Date.now() - Date.parse(info.attempts?.at(-1)?.started ?? info.started)) / 1000 : null;
  const { score } = info;
  const fact = (title, value, note, extra) => h("div", { class: "fact", data: { fact: title } }, h("dt", {}, title), h("dd", { title: note }, value, extra));
  return h("dl", { class: "facts" },
    fact("Step", info.total_steps ? `${count(info.steps)} of ${count(info.total_steps)}` : count(info.steps), null,
      share !== null && share < 1 && h("progress", { max: 1, value: share, "aria-label": `${percent(share)} of the steps` })),
    fact("Duration", duration(info.seconds ?? seconds)),
    fact(score?.best === false ? "Last metric" : "Best metric", score ? number(score.value) : "–", score && `at step ${score.step}`,
      score && h("span", { class: "muted small" }, ` ${score.name}`)),
    fact("Started", moment(info.started), info.started),
    fact("Configuration", h("code", {}, short(info.config_hash)), info.config_hash),
    fact("Commit", h("code", {}, short(info.commit), info.dirty ? "*" : ""), info.dirty ? `${info.commit}, with changes that are not committed` : info.commit),
    fact("Seed", h("code", {}, String(info.seed ?? "–"))));
}

function warnings(info) {
  const resume = `tenterhook train CONFIG.toml --resume ${info.id}`;
  return [
    info.problem && h("p", { class: "banner bad" }, info.problem),
    info.killed && h("p", { class: "banner warn" }, "This run was killed: its process is gone and never said good-bye. It goes on from its last checkpoint with ", h("code", {}, resume)),
    info.status === "error" && h("p", { class: "banner bad" }, info.reason ?? "This run failed."),
    info.status !== "error" && !info.killed && info.reason && h("p", { class: "banner" }, info.reason),
    info.loading !== null && h("p", { class: "banner", role: "status" }, `Reading the log: ${percent(info.loading)} `, h("progress", { max: 1, value: info.loading, "aria-label": "How much of the log was read" })),
  ];
}
