// Tabs as the ARIA practices describe them: one stop for the Tab key, arrows between the tabs.
import { h } from "./dom.js";

/** Tabs for `[{id, title, note}]`; `choose(id)` is called for a new one. Returns the list, its panel and `select`. */
export function tabs(label, items, chosen, choose) {
  const panel = h("div", { role: "tabpanel", id: "panel", class: "panel" });
  const buttons = items.map((item) =>
    h("button", { type: "button", role: "tab", id: `tab-${item.id}`, "aria-controls": "panel", data: { tab: item.id }, on: { click: () => select(item.id, true) } }, item.title));
  const list = h("div", { role: "tablist", "aria-label": label, class: "tabs", on: { keydown: move } }, buttons);

  function select(id, tell) {
    for (const button of buttons) {
      const on = button.dataset.tab === id;
      button.setAttribute("aria-selected", on);
      button.tabIndex = on ? 0 : -1;
      if (on) {
        panel.setAttribute("aria-labelledby", button.id);
        list.scrollLeft = button.offsetLeft - (list.clientWidth - button.offsetWidth) / 2;
      }
    }
    if (tell) choose(id);
  }

  function move(event) {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const button = buttons[(to + buttons.length) % buttons.length];
    select(button.dataset.tab, true);
    button.focus();
  }

  select(chosen, false);
  return { list, panel, select };
}
