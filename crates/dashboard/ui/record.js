// The rest of a run's record: every start of it, the machine, the versions.
import { fill, h, table } from "./dom.js";
import { count, moment, short } from "./format.js";
import { link } from "./router.js";

const COLUMNS = [{ title: "Started" }, { title: "Finished" }, { title: "Steps" }, { title: "Commit", mono: true }, { title: "Configuration", mono: true }, { title: "Machine" }, { title: "Command", mono: true }];

export function recordTab({ run }, panel, signal) {
  update();
  run.addEventListener("info", update, { signal });

  function update() {
    const { info } = run;
    const pairs = [
      ["Id", h("code", {}, info.id)],
      info.parent && ["Forked from", h("a", { href: link(info.parent) }, info.parent)],
      ["Started", moment(info.started)],
      ["Finished", moment(info.finished)],
      info.reason && ["Reason", info.reason],
      ["Commit", h("code", {}, info.commit ?? "–", info.dirty ? " with changes that are not committed" : "")],
      ["Configuration", h("code", {}, info.config_hash ?? "–")],
      ["Seed", String(info.seed ?? "–")],
      ["Machine", `${info.host ?? "–"}, ${info.threads ?? "–"} threads`],
      ...Object.entries(info.versions ?? {}).map(([name, version]) => [`Version of ${name}`, version]),
    ].filter(Boolean);
    const attempts = info.attempts ?? [];
    fill(panel, h("dl", { class: "pairs" }, pairs.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)])),
      h("h2", {}, attempts.length === 1 ? "One start" : `${attempts.length} starts`),
      table("Starts of the run", COLUMNS, attempts.map((attempt) => [
        moment(attempt.started), moment(attempt.finished), `${count(attempt.from_step)} – ${count(attempt.to_step)}`, [short(attempt.commit), attempt.dirty && "*"], short(attempt.config_hash),
        `${attempt.host ?? "–"}, process ${attempt.pid ?? "–"}`, [(attempt.args ?? []).join(" "), attempt.resumed_from && h("div", { class: "muted" }, `resumed from ${attempt.resumed_from}`)]]),
        { class: "cards" }));
  }
}
