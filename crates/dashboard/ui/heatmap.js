// Heat maps: the colours' scale, the labels, and what is under the mouse.
import { number, plain, shorten } from "./format.js";
import { axis, colourbar, diverging, sequential } from "./plot.js";

/** The least and the greatest number of a matrix, or null where there is none. */
export function extent(z) {
  let [low, high] = [Infinity, -Infinity];
  for (const row of z) {
    for (const value of row) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** The colour scale that fits: around zero where there are both signs, from the least up where not. */
export function scale([low, high]) {
  if (low < 0 && high > 0) {
    const most = Math.max(-low, high);
    return { colorscale: diverging(), zmin: -most, zmax: most };
  }
  return { colorscale: sequential(), zmin: low, zmax: high };
}

/** Colours by the power of ten, for numbers over many of them. Zero and less have no colour. */
export function logScale(z) {
  const powers = z.map((row) => row.map((value) => (value > 0 ? Math.log10(value) : null)));
  const ends = extent(powers);
  if (!ends) return null;
  const [low, high] = ends;
  const ticks = [];
  for (let power = Math.ceil(low); power <= high; power += Math.max(1, Math.ceil((high - low) / 6))) ticks.push(power);
  const bar = ticks.length > 1 ? { tickvals: ticks, ticktext: ticks.map((power) => `1e${power}`) } : { tickvals: ends, ticktext: ends.map((end) => number(10 ** end)) };
  return { z: powers, colorscale: sequential(), zmin: low, zmax: high, colorbar: colourbar(bar) };
}

/** The vertical axis with a row's name at every row, as far as they fit. */
export function rowAxis(names, height, room) {
  const every = Math.max(1, Math.ceil((names.length * 12) / height));
  const at = names.map((_, index) => index).filter((index) => index % every === 0);
  return axis({ tickvals: at, ticktext: at.map((index) => plain(shorten(names[index], room))), autorange: "reversed", showgrid: false, tickfont: { size: 10 }, nticks: undefined, fixedrange: true });
}

/** A number in a hover text for every cell; names of rows go through `plain`. */
export function hover(z, row, column) {
  return z.map((values, y) => values.map((value, x) => `${plain(row(y))}<br>${plain(column(x))}<br><b>${value === null ? "none" : number(value)}</b>`));
}
