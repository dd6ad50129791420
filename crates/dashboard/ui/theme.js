// Light, dark, or what the system says. The choice is kept in this browser.
import { fill, icon } from "./dom.js";

const ORDER = ["auto", "light", "dark"];
const ICONS = { auto: "auto", light: "sun", dark: "moon" };
const system = matchMedia("(prefers-color-scheme: dark)");
let choice = saved();

function saved() {
  try {
    const kept = localStorage.getItem("tenterhook.theme");
    return ORDER.includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

function keep() {
  try {
    localStorage.setItem("tenterhook.theme", choice);
  } catch {
    // then it holds until the page is closed
  }
}

function apply() {
  const dark = choice === "dark" || (choice === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", `Theme: ${choice}. Change it`);
  button.title = `Theme: ${choice}`;
  fill(button, icon(ICONS[choice]));
  dispatchEvent(new Event("themechange"));
}

/** A colour of the style sheet, for the plots: `colour("accent")`. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Whether things may move. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

system.addEventListener("change", apply);
document.getElementById("theme").addEventListener("click", () => {
  choice = ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length];
  keep();
  apply();
});
apply();
