// Captured tensors: attention patterns, token by token activations, and any other tensor by its index.
import { get, path } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { bytes, count } from "./format.js";
import { TensorView } from "./tensor.js";

/** The captures of a run. */
export function capturesTab({ run }, panel, signal) {
  let known = null;
  async function update() {
    const files = run.info.captures ?? [];
    const now = JSON.stringify(files);
    if (now === known) return;
    known = now;
    if (!files.length) {
      fill(panel, empty("Nothing was captured.", "A capture hook keeps tensors, and a run writes them at its end; add to the configuration:", '[[hooks]]\nkind = "capture"\npoints = "blocks.*.attn.hook_pattern"\nevery = 100'));
      return;
    }
    await browser(panel, files, (...rest) => path(run.id, "captures", ...rest), signal);
  }
  run.addEventListener("info", update, { signal });
  return update();
}

/** The page of the files that the server was started with: `serve --captures DIR`. */
export async function captureStorePage({ main, signal }) {
  const answer = await get("/api/captures", {}, signal);
  const files = (answer.captures ?? answer.files ?? answer).map((file) => (typeof file === "string" ? { file } : file));
  document.title = "Captures · Tenterhook";
  const panel = h("div");
  fill(main, h("div", { class: "head" }, h("h1", {}, "Captures")), panel);
  if (files.length) await browser(panel, files, (...rest) => `/api/captures/${rest.map(encodeURIComponent).join("/")}`, signal);
  else fill(panel, empty("There are no captures in this directory.", "Make some:", "tenterhook capture MODEL --text 'The tower is in' --points 'blocks.*.attn.hook_pattern' --out out.safetensors"));
}

async function browser(panel, files, url, signal) {
  let tensors = [];
  let shown = null;
  const file = h("select", { "aria-label": "File", class: "long", on: { change: open } },
    files.map((one) => h("option", { value: one.file }, one.bytes === undefined ? one.file : `${one.file}, ${bytes(one.bytes)}`)));
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter tensors", on: { input: () => list() } });
  const point = h("select", { "aria-label": "Point", class: "long", on: { change: () => steps() } });
  const when = h("select", { "aria-label": "Which capture of this point", on: { change: () => show() } });
  const facts = h("p", { class: "muted small" });
  const body = h("div");
  fill(panel, h("div", { class: "toolbar" }, files.length > 1 ? file : h("span", { class: "muted" }, file.selectedOptions[0].textContent), filter, point, when), facts, body);
  await open();

  async function open() {
    const answer = await get(url(file.value), {}, signal);
    tensors = answer.tensors;
    filter.hidden = new Set(tensors.map(place)).size < 8;
    if (!tensors.length) return fill(body, empty("This file has no tensors."));
    list();
    return undefined;
  }

  function list() {
    const words = filter.value.toLowerCase();
    const before = point.value;
    const points = [...new Set(tensors.map(place))].filter((name) => name.toLowerCase().includes(words));
    // Attention patterns first: they are what people open captures for.
    points.sort((a, b) => b.includes("hook_pattern") - a.includes("hook_pattern"));
    fill(point, points.map((name) => h("option", { value: name }, name)));
    if (points.includes(before)) point.value = before;
    if (points.length && point.value !== before) steps();
  }

  function steps() {
    const here = tensors.filter((tensor) => place(tensor) === point.value);
    const before = when.selectedOptions[0]?.textContent;
    fill(when, here.map((tensor) => h("option", { value: tensor.name }, said(tensor, here))));
    const same = [...when.options].find((option) => option.textContent === before);
    when.value = same ? same.value : here.at(-1).name;
    when.hidden = here.length < 2;
    show();
  }

  function show() {
    const tensor = tensors.find((one) => one.name === when.value);
    facts.textContent = `${tensor.name} · ${tensor.dtype} · ${tensor.shape.map(count).join(" × ") || "one number"}`;
    shown?.abort();
    shown = new AbortController();
    signal.addEventListener("abort", () => shown.abort());
    const view = new TensorView(tensor, url(file.value, "tensor"), shown.signal);
    fill(body, view.element);
  }
}

const place = (tensor) => tensor.point ?? tensor.name;

function said(tensor, all) {
  if (tensor.step === null || tensor.step === undefined) return tensor.name;
  const same = all.filter((other) => other.step === tensor.step);
  return same.length > 1 ? `step ${tensor.step}, pass ${same.indexOf(tensor) + 1}` : `step ${tensor.step}`;
}
