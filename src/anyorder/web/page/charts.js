// Charts of corpus metrics. Coordinates are percentages of the width, so nothing is redrawn when the window is resized.

import { ink, scale, stepTone } from "./color.js";
import { el, formatNumber, percent, svg } from "./dom.js";

/** One row per system: a dot with its interval, and the null as a gray band with a tick. rows: [name, metric | null]. */
export function dotChart(rows, domain) {
  const digits = digitsOf(domain);
  const [low, high] = domain;
  const x = (value) => `${(100 * Math.min(1, Math.max(0, (value - low) / (high - low)))).toFixed(2)}%`;
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const width = (from, to) => `${(100 * Math.max(0, Math.min(high, to) - Math.max(low, from)) / (high - low)).toFixed(2)}%`;
  const chart = el("div", { class: "dots" });
  for (const [name, metric] of rows) {
    const row = svg("svg", { class: "dot-row", height: 22, role: "img", "aria-label": `${name}: ${describe(metric, digits)}` });
    for (const tick of ticks(low, high)) row.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: 22 }));
    if (metric && known(metric.null)) {
      if (known(metric.null_low) && known(metric.null_high)) {
        row.append(svg("rect", { class: "null-band", x: x(metric.null_low), width: width(metric.null_low, metric.null_high), y: 4, height: 14 }));
      }
      row.append(svg("line", { class: "null", x1: x(metric.null), x2: x(metric.null), y1: 4, y2: 18 }));
    }
    if (metric && known(metric.value)) {
      if (known(metric.low) && known(metric.high)) {
        row.append(svg("line", { class: "interval", x1: x(metric.low), x2: x(metric.high), y1: 11, y2: 11 }));
      }
      row.append(svg("circle", { class: "dot", cx: x(metric.value), cy: 11, r: 4.2 }));
    }
    const value = el("span", { class: "value", title: describe(metric, digits) }, formatNumber(metric?.value, digits));
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

/** "0.63 [0.60, 0.66], by chance 0.00; difference to the first system 0.12 [0.09, 0.15]" */
export function describe(metric, digits = 2) {
  if (!metric || metric.value === null || metric.value === undefined) return "no value";
  const interval = metric.low == null ? "" : ` [${formatNumber(metric.low, digits)}, ${formatNumber(metric.high, digits)}]`;
  const chance = metric.null == null ? "" : `, by chance ${formatNumber(metric.null, digits)}`;
  return formatNumber(metric.value, digits) + interval + chance + difference(metric, digits);
}

function difference(metric, digits) {
  if (metric.difference == null || metric.difference_low == null) return "";
  const all = [metric.difference, metric.difference_low, metric.difference_high];
  const least = Math.min(...all.map(Math.abs).filter((size) => size > 0));
  const enough = Number.isFinite(least) ? Math.min(6, Math.max(digits, Math.ceil(-Math.log10(least)))) : digits; // enough digits that no end of the interval rounds to 0
  const [value, low, high] = all.map((end) => formatNumber(end, enough));
  return `; difference to the first system ${value} [${low}, ${high}]`;
}

/** The range of the axis: fixed for correlations, from 0 for shares, and otherwise the range of the values. */
export function domainOf(name, metrics) {
  if (/kendall|spearman|correlation/.test(name)) return [-1, 1];
  if (/share|ar-ness|rate|entropy|suffixes|^label/.test(name) && !metrics.some((metric) => metric?.value > 1)) {
    const most = Math.max(...metrics.flatMap((metric) => [metric?.high ?? metric?.value ?? 0, metric?.null_high ?? metric?.null ?? 0]));
    return [0, [0.05, 0.1, 0.2, 0.5, 1].find((top) => most <= top) ?? 1];
  }
  const values = metrics.flatMap((metric) => [metric?.value, metric?.low, metric?.high, metric?.null_low, metric?.null_high, metric?.null]);
  const known = values.filter((value) => Number.isFinite(value));
  if (!known.length) return [0, 1];
  const high = Math.max(...known);
  const low = Math.min(...known) > -0.02 * high ? 0 : Math.min(...known);
  const unit = 10 ** Math.floor(Math.log10(Math.max(1e-9, high - low)));
  const step = [0.2, 0.5, 1, 2].map((f) => f * unit).find((size) => (high - low) / size <= 6) ?? unit;
  return [Math.floor(low / step) * step, Math.ceil(high / step + 1e-9) * step || 1];
}

/** The number of decimals that fits the range of an axis. */
export function digitsOf([low, high]) {
  return high - low <= 0.1 ? 3 : high - low > 10 ? 1 : 2;
}

function ticks(low, high) {
  const middle = (low + high) / 2;
  return [low, middle, high];
}

function plain(value, marks) {
  const digits = [0, 1, 2, 3].find((d) => marks.every((mark) => Math.abs(Number(mark.toFixed(d)) - mark) < 1e-9)) ?? 3;
  return formatNumber(value, digits);
}

/** A heat map of position × step over a corpus. share[step bin][position bin]; `most` is the share of the darkest color. */
export function heatMap(share, most, dark, readout) {
  const bins = share.length;
  const columns = share[0]?.length ?? 0;
  const map = svg("svg", { class: "heat", viewBox: `0 0 ${columns} ${bins}`, preserveAspectRatio: "none", role: "img", "aria-label": "Share of fills by relative position (left to right) and relative step (top to bottom)" });
  share.forEach((row, r) => {
    row.forEach((value, c) => map.append(svg("rect", { x: c, y: r, width: 1.02, height: 1.02, fill: heatColor(value ?? 0, most, dark) })));
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

/** A grid of the mean step at which each cell is filled, colored as steps are; null where a cell was always given. */
export function cellMap(means, { columns, rows, box }, most) {
  const known = means.map((mean) => formatNumber(mean, 1)).join(", ");
  const map = svg("svg", { class: "cell-map", viewBox: `0 0 ${columns} ${rows}`, role: "img", "aria-label": `Mean step of each cell, row by row: ${known}` });
  means.forEach((mean, i) => {
    const [x, y] = [i % columns, Math.floor(i / columns)];
    const tone = mean === null ? null : stepTone(mean, most);
    map.append(svg("rect", { x, y, width: 1.01, height: 1.01, class: mean === null ? "never" : null, fill: tone === null ? null : scale(tone) }));
    if (tone === null) return;
    const text = svg("text", { x: x + 0.5, y: y + 0.5 }, formatNumber(mean, 1));
    text.style.fill = ink(tone);
    map.append(text);
  });
  for (let at = box; box > 0 && at < columns; at += box) map.append(svg("line", { class: "box", x1: at, x2: at, y1: 0, y2: rows }));
  for (let at = box; box > 0 && at < rows; at += box) map.append(svg("line", { class: "box", x1: 0, x2: columns, y1: at, y2: at }));
  return map;
}

/** The square root, because a strict order puts everything into one cell of a row and others spread it over twenty. */
export function heatColor(value, most, dark) {
  const t = Math.sqrt(Math.min(1, Math.max(0, value / (most || 1))));
  const solid = Math.min(1, t / 0.25); // a share of 0 is transparent
  return scale(dark ? t : 1 - t).replace(")", ` / ${solid.toFixed(2)})`);
}

/** The color bar of a legend. colorAt(t): the color at t, from 0 to 1. */
export function ramp(colorAt) {
  const bar = el("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 21 }, (_, i) => colorAt(i / 20)).join(", ")})`;
  return bar;
}

/** A bar chart of signed jumps. jumps: {"-10": share, …, "10": share}. */
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
    const text = Math.abs(key) === edge ? `${key < 0 ? "≤ −" : "≥ "}${edge}` : formatNumber(key, 0);
    const anchor = key === -edge ? "start" : key === edge ? "end" : "middle";
    const at = key === -edge ? 0 : key === edge ? 100 : (key + edge + 0.5) * slot;
    if (Number.isInteger(key)) chart.append(svg("text", { x: `${at}%`, y: 109, "text-anchor": anchor }, text));
  }
  return chart;
}
