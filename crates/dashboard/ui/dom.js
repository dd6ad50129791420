// Elements from data. Texts only ever become text nodes, so nothing that a run is called can turn into markup.

/** An element. `attributes` may hold `on: {event: handler}` and `data: {key: value}`; null and false leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "value" || name === "checked") {
      element[name] = value;
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...present(children));
  return element;
}

/** Replaces what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

const PATHS = {
  expand: "M9 3H3v6M15 21h6v-6M3 3l7 7M21 21l-7-7",
  shrink: "M4 10h6V4M20 14h-6v6M10 10 3 3M14 14l7 7",
  close: "M6 6l12 12M18 6 6 18",
  sun: "M12 4V2M12 22v-2M4 12H2M22 12h-2M6 6 4.500 4.500M19.500 19.500 18 18M6 18l-1.500 1.500M19.500 4.500 18 6M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8",
  moon: "M20 14.500A8.500 8.500 0 1 1 9.500 4a7 7 0 0 0 10.500 10.500",
  auto: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 3v18M15 6v12M18 8v8",
};

/** A small drawing for a button; the button itself says what it does. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** What a page shows where there is nothing: what is missing, and what to do about it. */
export function empty(title, advice, code) {
  return h("div", { class: "empty" }, h("p", {}, h("strong", {}, title)), advice && h("p", {}, advice), code && h("pre", {}, code));
}

/** A table with headers; `columns` are `{title, number, mono}`, rows lists of texts or elements. */
export function table(caption, columns, rows, attributes = {}) {
  const head = columns.map((column) => h("th", { scope: "col", class: column.number && "number" }, column.title));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => {
      const { title, number, mono } = columns[at];
      return h(at === 0 ? "th" : "td", { scope: at === 0 && "row", class: [number && "number", mono && "mono"].filter(Boolean).join(" ") || null, data: { label: title } }, cell ?? "–");
    })),
  );
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", attributes, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}
