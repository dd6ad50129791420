// The server's API. Every failure becomes an Error with the server's own sentence.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** The path of a run's resource: `path("induction", "series")`. */
export function path(run, ...rest) {
  return `/api/runs/${[run, ...rest].map(encodeURIComponent).join("/")}`;
}

/** GETs JSON. Lists among the parameters are repeated: `{name: ["loss", "lr"]}`. */
export async function get(url, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined) query.append(key, one);
  }
  const asked = query.toString();
  return answer(await reach(asked ? `${url}?${asked}` : url, { signal }));
}

/** POSTs JSON with the control token. */
export async function post(url, body, token) {
  const headers = { "content-type": "application/json", "x-tenterhook-token": token };
  return answer(await reach(url, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function reach(url, options) {
  try {
    return await fetch(url, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is `tenterhook serve` still running?", 0);
  }
}

async function answer(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    if (response.ok) throw new ApiError(`The server's answer is not JSON (status ${response.status}).`, response.status);
  }
  if (!response.ok) throw new ApiError(body?.error ?? `The server answered with status ${response.status}.`, response.status);
  return body;
}
