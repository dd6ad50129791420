// The page: where the address leads, and what is the same everywhere.
import { get } from "./api.js";
import { captureStorePage } from "./captures.js";
import { empty, fill, h } from "./dom.js";
import { listPage } from "./list.js";
import { clear, connection, fail } from "./notice.js";
import { here } from "./router.js";
import { runPage } from "./run.js";

const main = document.getElementById("main");
const about = get("/api/about");
let current = null;

async function show() {
  const place = here();
  if (current?.stay?.(place)) return;
  current?.controller.abort();
  const controller = new AbortController();
  const mine = { controller };
  current = mine;
  clear();
  connection("idle");
  fill(main, h("p", { class: "empty" }, "Loading…"));
  scrollTo(0, 0);
  document.title = "Tenterhook";
  try {
    const pages = { list: listPage, run: runPage, captures: captureStorePage };
    const page = pages[place.page];
    if (!page) throw new Error("There is no such page. The runs are one click away, at the top left.");
    const stay = await page({ main, place, about: await about, signal: controller.signal });
    if (current === mine) mine.stay = stay;
  } catch (error) {
    if (error.name === "AbortError") return;
    fail(error);
    fill(main, empty("Nothing to show here.", error.message));
  }
}

function places({ captures, version, runs_dir: folder }) {
  const links = [["#/", "Runs"], captures && ["#/captures", "Captures"]].filter(Boolean);
  fill(document.getElementById("places"), links.map(([address, title]) => h("a", { href: address }, title)));
  document.querySelector(".brand").title = `Tenterhook ${version}, runs in ${folder}`;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = [...document.querySelectorAll("input[type=search]")].find((input) => input.offsetParent);
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});

addEventListener("hashchange", show);
about.then(places, fail);
show();
