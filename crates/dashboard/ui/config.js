// A run's configuration, and what differs from another run.
import { get, path } from "./api.js";
import { empty, fill, h, table } from "./dom.js";
import { number } from "./format.js";
import { fail } from "./notice.js";

const MANY = 20;
const PARTS = [["config", "Configuration"], ["commit", "Commit"], ["data", "Data"], ["metrics", "Metrics"]];

export async function configTab({ run, others }, panel, signal) {
  if (!run.info.config && run.info.config !== "") Object.assign(run.info, await get(path(run.id), {}, signal));
  const choice = h("select", { id: "other", class: "long", on: { change: compare } }, h("option", { value: "" }, "no run"), others.all.map((one) => h("option", { value: one.id }, one.name ?? one.id)));
  const result = h("div", { "aria-live": "polite" });
  const name = run.info.name ?? run.id;
  choice.value = others.ids[0] ?? "";
  fill(panel, h("div", { class: "toolbar" }, h("label", { class: "field", for: "other" }, "What differs from", choice)), result,
    h("h2", {}, "config.toml"), h("pre", { class: "config", tabindex: "0", "aria-label": "The configuration" }, coloured(run.info.config ?? "")));
  await compare();

  async function compare() {
    if (!choice.value) return fill(result);
    const title = choice.selectedOptions[0].textContent;
    fill(result, h("p", { class: "muted" }, "Comparing…"));
    try {
      const found = await get(path(run.id, "diff"), { other: choice.value }, signal);
      const parts = PARTS.filter(([key]) => found[key]?.length);
      fill(result, parts.length === 0 && empty(`Nothing differs between ${name} and ${title}.`), parts.map(([key, heading]) => h("details", { class: "group", open: found[key].length <= MANY }, h("summary", {}, h("h2", {}, heading), h("span", { class: "muted small" }, String(found[key].length))),
        table(`${heading}: what differs`, [{ title: "Key", mono: true }, { title: name, mono: true }, { title, mono: true }],
          found[key].map((line) => [line.key, side(line.a, "a"), side(line.b, "b")]), { class: "diff" }))));
    } catch (error) {
      fill(result);
      fail(error);
    }
    return undefined;
  }
}

function side(value, which) {
  if (value === null || value === undefined) return h("span", { class: "muted" }, "absent");
  const text = typeof value === "string" ? value : typeof value === "number" ? number(value) : JSON.stringify(value);
  return h("span", { class: `side-${which}` }, text);
}

/** The text with its tables, keys and comments told apart. */
function coloured(text) {
  return text.split("\n").map((line) => {
    const kind = /^\s*\[/.test(line) ? "section" : /^\s*#/.test(line) ? "comment" : null;
    const [, key, rest] = kind ? [] : (line.match(/^([^=]+)(=.*)$/) ?? []);
    return [kind ? h("span", { class: kind }, line) : key ? [h("span", { class: "key" }, key), rest] : line, "\n"];
  });
}
