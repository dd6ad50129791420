// Numbers, times and sizes as a person reads them.

/** A measured number, in about five digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value)) return count(value);
  return value.toLocaleString("en-US", { maximumSignificantDigits: 5 });
}

/** A whole number with its thousands apart. */
export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const pad = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor(whole / 60) % 60)} m`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function nanoseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e6) return `${Math.round(value / 1e3)} µs`;
  if (value < 1e9) return `${Number((value / 1e6).toPrecision(3))} ms`;
  return duration(value / 1e9);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return `${unit === 0 ? value : Number(value.toPrecision(3))} ${units[unit]}`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)}%`;
}

/** A moment of a record (RFC 3339), in the reader's own time zone. */
export function moment(text) {
  const time = new Date(text ?? NaN);
  if (Number.isNaN(time.getTime())) return "–";
  const year = time.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  return time.toLocaleString("en-GB", { day: "numeric", month: "short", year, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** The first digits of a hash. */
export function short(hash) {
  return hash ? hash.slice(0, 8) : "–";
}

/** A name inside a text that plotly draws: plotly reads `<b>` and `<a>` in texts, so that these must not be in it. */
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Cuts out the middle of a long text. */
export function shorten(text, most) {
  if (text.length <= most) return text;
  const tail = Math.ceil((most - 1) * 0.6);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}
