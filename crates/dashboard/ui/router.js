// Deep links: `#/`, `#/run/ID/TAB?with=OTHER&with=ANOTHER`, `#/captures`.

/** The place that the address names. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decoded);
  const parameters = new URLSearchParams(query);
  if (page === "run" && rest[0]) return { page, run: rest[0], tab: rest[1] ?? "metrics", parameters };
  if (page === "captures") return { page, parameters };
  return { page: page === "" || page === "main" ? "list" : "unknown", parameters };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray % in a link typed by hand
  }
}

/** The link to a run's tab, with other runs laid over it. */
export function link(run, tab = "metrics", others = []) {
  const query = new URLSearchParams(others.map((other) => ["with", other])).toString();
  return `#/run/${encodeURIComponent(run)}/${tab}${query ? `?${query}` : ""}`;
}

/** Changes the address without leaving the page, so that the back button skips it. */
export function amend(address) {
  history.replaceState(null, "", address);
}
