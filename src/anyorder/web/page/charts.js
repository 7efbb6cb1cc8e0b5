// Charts of corpus figures. Coordinates are per cent of the width, so nothing is redrawn when the page changes size.

import { scale } from "./colour.js";
import { el, number, percent, svg } from "./dom.js";

/** Rows of a dot with its interval; the null as a grey band with a tick. rows: [name, figure | null]. */
export function dotChart(rows, domain) {
  const digits = digitsOf(domain);
  const [low, high] = domain;
  const x = (value) => `${(100 * Math.min(1, Math.max(0, (value - low) / (high - low)))).toFixed(2)}%`;
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const width = (from, to) => `${(100 * Math.max(0, Math.min(high, to) - Math.max(low, from)) / (high - low)).toFixed(2)}%`;
  const chart = el("div", { class: "dots" });
  for (const [name, figure] of rows) {
    const row = svg("svg", { class: "dot-row", height: 22, role: "img", "aria-label": `${name}: ${told(figure, digits)}` });
    for (const tick of ticks(low, high)) row.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: 22 }));
    if (figure && known(figure.null)) {
      if (known(figure.null_low) && known(figure.null_high)) {
        row.append(svg("rect", { class: "null-band", x: x(figure.null_low), width: width(figure.null_low, figure.null_high), y: 4, height: 14 }));
      }
      row.append(svg("line", { class: "null", x1: x(figure.null), x2: x(figure.null), y1: 4, y2: 18 }));
    }
    if (figure && known(figure.value)) {
      if (known(figure.low) && known(figure.high)) {
        row.append(svg("line", { class: "interval", x1: x(figure.low), x2: x(figure.high), y1: 11, y2: 11 }));
      }
      row.append(svg("circle", { class: "dot", cx: x(figure.value), cy: 11, r: 4.2 }));
    }
    const value = el("span", { class: "value", title: told(figure, digits) }, number(figure?.value, digits));
    chart.append(el("span", { class: "name", title: name }, name), row, value);
  }
  const axis = svg("svg", { class: "axis", height: 16, "aria-hidden": "true" });
  const marks = ticks(low, high);
  for (const tick of marks) {
    const anchor = tick === low ? "start" : tick === high ? "end" : "middle";
    axis.append(svg("text", { x: x(tick), y: 12, "text-anchor": anchor }, plain(tick, marks)));
  }
  chart.append(el("span", {}), axis, el("span", {}));
  return chart;
}

/** "0.63 [0.60, 0.66], by chance 0.00; less the first system's 0.12 [0.09, 0.15]" */
export function told(figure, digits = 2) {
  if (!figure || figure.value === null || figure.value === undefined) return "no figure";
  const interval = figure.low == null ? "" : ` [${number(figure.low, digits)}, ${number(figure.high, digits)}]`;
  const chance = figure.null == null ? "" : `, by chance ${number(figure.null, digits)}`;
  return number(figure.value, digits) + interval + chance + difference(figure, digits);
}

function difference(figure, digits) {
  if (figure.difference == null || figure.difference_low == null) return "";
  const all = [figure.difference, figure.difference_low, figure.difference_high];
  const least = Math.min(...all.map(Math.abs).filter((size) => size > 0));
  const enough = Number.isFinite(least) ? Math.min(6, Math.max(digits, Math.ceil(-Math.log10(least)))) : digits; // an end must not become 0
  const [value, low, high] = all.map((one) => number(one, enough));
  return `; less the first system's ${value} [${low}, ${high}]`;
}

/** The part of the axis that a set of figures needs: shares and correlations have their own, others what they span. */
export function domainOf(name, figures) {
  if (/kendall|spearman|correlation/.test(name)) return [-1, 1];
  if (/share|ar-ness|rate|entropy|suffixes|^label/.test(name) && !figures.some((figure) => figure?.value > 1)) {
    const most = Math.max(...figures.flatMap((figure) => [figure?.high ?? figure?.value ?? 0, figure?.null_high ?? figure?.null ?? 0]));
    return [0, [0.05, 0.1, 0.2, 0.5, 1].find((top) => most <= top) ?? 1];
  }
  const values = figures.flatMap((figure) => [figure?.value, figure?.low, figure?.high, figure?.null_low, figure?.null_high, figure?.null]);
  const known = values.filter((value) => Number.isFinite(value));
  if (!known.length) return [0, 1];
  const high = Math.max(...known);
  const low = Math.min(...known) > -0.02 * high ? 0 : Math.min(...known);
  const unit = 10 ** Math.floor(Math.log10(Math.max(1e-9, high - low)));
  const step = [0.2, 0.5, 1, 2].map((f) => f * unit).find((one) => (high - low) / one <= 6) ?? unit;
  return [Math.floor(low / step) * step, Math.ceil(high / step + 1e-9) * step || 1];
}

/** Decimals that tell apart what an axis tells apart. */
export function digitsOf([low, high]) {
  return high - low <= 0.1 ? 3 : high - low > 10 ? 1 : 2;
}

function ticks(low, high) {
  const middle = (low + high) / 2;
  return [low, middle, high];
}

function plain(value, marks) {
  const digits = [0, 1, 2, 3].find((d) => marks.every((mark) => Math.abs(Number(mark.toFixed(d)) - mark) < 1e-9)) ?? 3;
  return number(value, digits);
}

/** Position × step of a whole corpus. share[step bin][position bin]; `most` is the share of the darkest colour. */
export function heatMap(share, most, dark, readout) {
  const bins = share.length;
  const columns = share[0]?.length ?? 0;
  const map = svg("svg", { class: "heat", viewBox: `0 0 ${columns} ${bins}`, preserveAspectRatio: "none", role: "img", "aria-label": "Share of fills by relative position (left to right) and relative step (top to bottom)" });
  share.forEach((row, r) => {
    row.forEach((value, c) => map.append(svg("rect", { x: c, y: r, width: 1.02, height: 1.02, fill: heatColour(value ?? 0, most, dark) })));
  });
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    const c = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    const r = Math.min(bins - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * bins)));
    const span = (i, n) => `${Math.round((100 * i) / n)}–${Math.round((100 * (i + 1)) / n)} %`;
    readout(`step ${span(r, bins)}, position ${span(c, columns)}: ${percent(share[r][c], 1)}`);
  });
  map.addEventListener("pointerleave", () => readout(null));
  return map;
}

/** Square root, because a strict order puts everything in one cell and others spread it over twenty. */
export function heatColour(value, most, dark) {
  const t = Math.sqrt(Math.min(1, Math.max(0, value / (most || 1))));
  const solid = Math.min(1, t / 0.25); // nothing is the colour of the paper
  return scale(dark ? t : 1 - t).replace(")", ` / ${solid.toFixed(2)})`);
}

/** The bar of a legend: colours of t from 0 to 1. */
export function ramp(colourAt) {
  const bar = el("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 21 }, (_, i) => colourAt(i / 20)).join(", ")})`;
  return bar;
}

/** Bars of signed jumps. jumps: {"-10": share, …, "10": share}. */
export function jumpChart(jumps) {
  const most = Math.max(...Object.values(jumps).map((share) => share ?? 0));
  const keys = Object.keys(jumps).map(Number).sort((a, b) => a - b);
  const edge = Math.max(...keys.map(Math.abs));
  const slot = 100 / (2 * edge + 1);
  const chart = svg("svg", { class: "jumps", height: 112, role: "img", "aria-label": `Jumps: ${keys.map((key) => `${key}: ${percent(jumps[key])}`).join(", ")}` });
  chart.append(svg("line", { class: "grid", x1: "50%", x2: "50%", y1: 14, y2: 94 }));
  for (const key of keys) {
    const height = (78 * (jumps[key] ?? 0)) / (most || 1);
    const bar = svg("rect", { class: "bar", x: `${((key + edge) * slot + slot * 0.12).toFixed(2)}%`, width: `${(slot * 0.76).toFixed(2)}%`, y: 94 - height, height });
    bar.append(svg("title", {}, `jump ${key > 0 ? "+" : ""}${key}: ${percent(jumps[key], 1)}`));
    chart.append(bar);
    if (jumps[key] === most) chart.append(svg("text", { class: "top", x: `${((key + edge + 0.5) * slot).toFixed(2)}%`, y: 11, "text-anchor": Math.abs(key) < edge ? "middle" : key < 0 ? "start" : "end" }, percent(most)));
  }
  chart.append(svg("line", { class: "base", x1: 0, x2: "100%", y1: 94.5, y2: 94.5 }));
  for (const key of [-edge, -edge / 2, 0, edge / 2, edge]) {
    const text = Math.abs(key) === edge ? `${key < 0 ? "≤ −" : "≥ "}${edge}` : number(key, 0);
    const anchor = key === -edge ? "start" : key === edge ? "end" : "middle";
    const at = key === -edge ? 0 : key === edge ? 100 : (key + edge + 0.5) * slot;
    if (Number.isInteger(key)) chart.append(svg("text", { x: `${at}%`, y: 109, "text-anchor": anchor }, text));
  }
  return chart;
}
