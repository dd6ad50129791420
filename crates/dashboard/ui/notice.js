// What went wrong, at the top of the page until it is closed; and whether the page still hears from the server.
import { fill, h, icon } from "./dom.js";

/** Shows a failure. What was given up because the page moved on is none. */
export function fail(error) {
  if (error?.name === "AbortError") return;
  const box = document.getElementById("notices");
  const text = error?.message ?? String(error);
  if ([...box.children].some((child) => child.dataset.text === text)) return;
  const note = h("div", { class: "notice", data: { text } }, h("span", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close this message", on: { click: () => note.remove() } }, icon("close")));
  box.append(note);
}

/** Takes away the messages of the page that was left. */
export function clear() {
  fill(document.getElementById("notices"));
}

/** `state`: live, waiting (lost, being tried again) or idle. */
export function connection(state) {
  const texts = { live: "connected", waiting: "connection lost, trying again…", idle: "" };
  const element = document.getElementById("connection");
  if (element.dataset.state === state) return;
  element.dataset.state = state;
  element.textContent = texts[state];
}

addEventListener("unhandledrejection", (event) => {
  fail(event.reason);
  event.preventDefault();
});
