// The hooks of a run: in which order they run, what each did and what it cost; with control, a switch for each.
import { path, post } from "./api.js";
import { empty, fill, h, table } from "./dom.js";
import { count, moment, nanoseconds, percent } from "./format.js";
import { fail } from "./notice.js";

const COLUMNS = [
  { title: "#", number: true }, { title: "Hook" }, { title: "Points" }, { title: "Fired", number: true }, { title: "Events", number: true }, { title: "Edits", number: true },
  { title: "Time", number: true }, { title: "Share of the step", number: true }, { title: "Errors", number: true }, { title: "Enabled" },
];

let token = "";
try {
  token = sessionStorage.getItem("tenterhook.token") ?? "";
} catch {
  // a browser that keeps nothing: it is typed again after a reload
}

export function hooksTab({ run, about }, panel, signal) {
  const asked = new Map(); // what was asked of the run and has not happened yet
  const list = h("div");
  const changes = h("div");
  const errors = h("div");
  const opened = new Set();

  fill(panel, about.control && tokenField(), list, changes, errors);
  update();
  // A row must not be replaced between the press and the release of a button.
  let held = false;
  const release = () => setTimeout(() => { held = false; update(); });
  list.addEventListener("pointerdown", () => {
    held = true;
    addEventListener("pointerup", release, { once: true, signal });
    addEventListener("pointercancel", release, { once: true, signal });
  });
  run.addEventListener("info", () => { if (!held) update(); }, { signal });

  function update() {
    const { info } = run;
    const hooks = info.hooks ?? [];
    for (const hook of hooks) if (asked.get(hook.id) === hook.enabled) asked.delete(hook.id);
    const focus = document.activeElement?.closest?.("[data-hook]")?.dataset.hook;
    fill(list, hooks.length ? table("Hooks, in the order in which they run", COLUMNS, hooks.map(row), { class: "hooks cards" }) : empty("This run has no hooks.", "Hooks are tables of the configuration; `tenterhook hooks` lists the kinds."));
    if (focus) [...list.querySelectorAll("[data-hook]")].find((element) => element.dataset.hook === focus)?.focus();
    fill(changes, changeTable(info.hook_changes ?? []));
    fill(errors, errorTable(info.errors ?? []));
  }

  function row(hook, at) {
    const did = hook.receipt ?? {};
    const share = did.share ?? (did.nanoseconds !== undefined && run.info.seconds ? did.nanoseconds / 1e9 / run.info.seconds : null);
    return [String(at + 1), [h("strong", {}, hook.id), hook.kind !== hook.id && h("div", { class: "muted small" }, hook.kind), options(hook)], points(hook, opened),
      count(did.fired), count(did.events), count(did.edits), nanoseconds(did.nanoseconds), share === null ? "–" : meter(share),
      did.errors ? h("span", { class: "bad" }, count(did.errors)) : count(did.errors), state(hook, did)];
  }

  function state(hook, did) {
    const waiting = asked.has(hook.id);
    const note = waiting ? "at the next step" : did.quarantined ? "quarantined" : null;
    if (!about.control || !run.info.live) return [hook.enabled ? "on" : h("span", { class: "muted" }, "off"), note && h("div", { class: "small bad" }, note)];
    const on = waiting ? asked.get(hook.id) : hook.enabled;
    return [h("button", { type: "button", role: "switch", class: "switch", "aria-checked": String(on), "aria-label": `${hook.id} enabled`, data: { hook: hook.id }, on: { click: () => change(hook.id, !on) } }, h("span", { "aria-hidden": "true" })),
      note && h("div", { class: "small muted", role: "status" }, note)];
  }

  async function change(id, enabled) {
    try {
      await post(path(run.id, "hooks", id), { enabled }, token);
      asked.set(id, enabled);
      update();
    } catch (error) {
      fail(error);
    }
  }
}

function tokenField() {
  const field = h("input", { type: "password", autocomplete: "off", spellcheck: "false", value: token, id: "control-token", placeholder: "shown by serve --control", on: { input: () => {
    token = field.value.trim();
    try {
      sessionStorage.setItem("tenterhook.token", token);
    } catch {
      // then it holds until the page is closed
    }
  } } });
  return h("form", { class: "toolbar", on: { submit: (event) => event.preventDefault() } }, h("label", { class: "field", for: "control-token" }, "Control token", field));
}

function meter(share) {
  const bar = h("span", { class: "meter", "aria-hidden": "true" }, h("span"));
  bar.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
  return [percent(share), bar];
}

function points(hook, opened) {
  const { id, matched } = hook;
  if (!matched?.length) return h("span", { class: "muted" }, "none");
  const details = h("details", { class: "points", open: opened.has(id), on: { toggle: () => { details.open ? opened.add(id) : opened.delete(id); } } },
    h("summary", { data: { hook: `points of ${id}` } }, matched.length === 1 ? "1 point" : `${matched.length} points`), h("ul", { class: "mono small" }, matched.map((point) => h("li", {}, point))));
  return details;
}

function options({ options }) {
  const set = Object.entries(options ?? {}).filter(([key]) => key !== "kind" && key !== "id");
  return set.length > 0 && h("div", { class: "small muted mono" }, set.map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join(", "));
}

function changeTable(changes) {
  return changes.length > 0 && [h("h2", {}, "Changes while it ran"),
    table("Changes of hooks", [{ title: "Step", number: true }, { title: "Hook" }, { title: "Became" }, { title: "When" }, { title: "By" }],
      changes.map((change) => [count(change.step), change.hook, change.enabled ? "enabled" : "disabled", moment(change.time), change.by]))];
}

function errorTable(errors) {
  return errors.length > 0 && [h("h2", {}, "Errors"),
    table("Errors", [{ title: "Step", number: true }, { title: "Hook" }, { title: "Where" }, { title: "What happened" }],
      errors.map(({ step, hook_id: hook, event, point, error, backtrace }) => [count(step), hook, [event, point].filter(Boolean).join(" at "),
        [error, backtrace && h("details", {}, h("summary", {}, "backtrace"), h("pre", { class: "small" }, backtrace.join("\n")))]]), { class: "cards" })];
}
