// The corpus view: metrics with intervals, heat maps, labels, jumps. It shows what the analysis holds and lists what it lacks.

import { cellMap, describe, digitsOf, domainOf, dotChart, heatColor, heatMap, jumpChart, ramp } from "./charts.js";
import { scale } from "./color.js";
import { el, formatNumber, percent } from "./dom.js";

const MEANING = {
  "kendall left-to-right": "Kendall τ: 1 is left to right, −1 right to left",
  "spearman left-to-right": "Rank correlation of step and position",
  "kendall outer-in": "Kendall τ with filling from both ends inwards",
  "spearman outer-in": "Rank correlation with filling from both ends inwards",
  "edge share": "Fills of the leftmost or rightmost blank",
  "adjacent share": "Moves to a neighbor of the position filled before",
  "mean jump": "Mean distance to the position filled before",
  "left-to-right share": "Sentences filled strictly from left to right",
  "nearly left-to-right share": "The same without final punctuation, or Kendall τ above .9",
  "punctuation first share": "Final punctuation first, then left to right",
  "order entropy": "How uncertain the position is at a given step",
  "diversity": "How much orders differ between sentences",
  "suffix last share": "Sentences with a word ending filled after both neighbors",
  "suffixes last": "Word endings filled after both neighbors",
  "constituent sentence share": "Sentences with a constituent finished in consecutive steps",
  "constituent share": "Constituents finished in consecutive steps",
  "repetition rate": "Neighboring words that repeat",
  "sentence bleu": "Mean over sentences",
  "solved": "Puzzles that are entirely right, in percent",
  "frequency correlation": "Correlation of step and log word frequency",
};

// Labels have their own section, and right-to-left is left-to-right with the opposite sign. The table, which repeats all
// metrics as numbers and is folded for that reason, has both.
const ELSEWHERE = /^label |^(kendall|spearman) right-to-left$/;

/** Draws into `element`; `dark` reverses the colors of the heat maps. */
export function corpusView(element, corpus, dark) {
  const { analysis } = corpus;
  const systems = (analysis.systems ?? []).filter(Boolean);
  element.replaceChildren();
  if (corpus.grid) element.append(cellMaps(corpus));
  if (!systems.length && !corpus.grid) {
    element.append(el("p", { class: "notice" }, "This report has no corpus analysis."));
    return;
  }
  const names = [...new Set(systems.flatMap((system) => Object.keys(system.figures ?? {})))].filter((name) => !corpus.grid || !/bleu/i.test(name));
  if (names.length) element.append(metricPanels(systems, names));
  if (systems.some((system) => system.positions?.share?.length)) element.append(heatMaps(systems, dark));
  if (systems.some((system) => system.labels)) element.append(labels(systems));
  if (systems.some((system) => system.jumps)) element.append(jumps(systems));
  if (systems.some((system) => system.by_tag)) element.append(tags(systems));
  if (names.length) element.append(table(systems, names));
  if (analysis.notes?.length) element.append(block("Not measured", "", el("ul", {}, ...analysis.notes.map((note) => el("li", {}, String(note))))));
  element.append(signatures(systems));
}

function block(title, explanation, ...content) {
  return el("section", { class: "block" }, el("h2", {}, title), el("p", { class: "muted" }, explanation), ...content);
}

function panel(title, meaning, content) {
  return el("figure", { class: "panel" }, el("figcaption", {}, el("strong", {}, title), meaning ? el("span", { class: "muted" }, meaning) : null), content);
}

function metricPanels(systems, names) {
  const grid = el("div", { class: "panels" });
  for (const name of names) {
    if (ELSEWHERE.test(name)) continue;
    const rows = systems.map((system) => [system.name, system.figures?.[name] ?? null]);
    if (rows.every(([, metric]) => metric?.value == null)) continue;
    grid.append(panel(name, MEANING[name] ?? arness(name), dotChart(rows, domainOf(name, rows.map(([, metric]) => metric)))));
  }
  const dot = el("span", { class: "key" }, el("i", { class: "key-dot" }), "value, 95 % interval over sentences");
  const chance = el("span", { class: "key" }, el("i", { class: "key-null" }), "random orders of the same lengths");
  const key = el("span", { class: "key wide" }, dot, chance);
  return block("Metrics", key, grid);
}

function arness(name) {
  const found = /^(local|global) ar-ness@(\d+)$/.exec(name);
  if (!found) return null;
  if (found[1] === "local") return found[2] === "1" ? "Moves to the right neighbor" : `${found[2]} moves in a row to the right neighbor`;
  return found[2] === "1" ? "Fills of the leftmost blank" : `Fills of one of the ${found[2]} leftmost blanks`;
}

function cellMaps({ grid, systems, count }) {
  const most = Math.max(1, ...grid.mean_steps.flat().map((mean) => mean ?? 0));
  const panels = el("div", { class: "panels heats" });
  systems.forEach((system, s) => {
    const solved = grid.solved[s].filter(Boolean).length;
    panels.append(panel(system.name, `${percent(solved / count, 1)} solved`, cellMap(grid.mean_steps[s], grid, most)));
  });
  const key = el("span", { class: "key" }, "first step", ramp(scale), formatNumber(most, 1));
  return block("Mean step by cell", key, panels);
}

function heatMaps(systems, dark) {
  const shares = systems.flatMap((system) => system.positions?.share?.flat() ?? []);
  const most = Math.max(...shares.map((value) => value ?? 0));
  const grid = el("div", { class: "panels heats" });
  for (const system of systems) {
    const share = system.positions?.share;
    if (!share?.length) continue;
    const note = el("span", { class: "muted readout" }, "\u00a0");
    const map = heatMap(share, most, dark, (text) => (note.textContent = text ?? "\u00a0"));
    const plot = el("div", { class: "plot" }, el("span", { class: "y" }, "step →"), map, el("span", { class: "x" }, "position →"));
    grid.append(panel(system.name, null, el("div", {}, plot, note)));
  }
  const key = el("span", { class: "key" }, "0", ramp((t) => heatColor(t ** 2, 1, dark)), `${percent(most)} of a step's fills`);
  return block("Position × step", key, grid);
}

function labels(systems) {
  const names = [...new Set(systems.flatMap((system) => Object.keys(system.labels ?? {})))];
  const grid = el("div", { class: "panels" });
  for (const name of names) {
    const rows = systems.map((system) => [system.name, system.figures?.[`label ${name}`] ?? { value: system.labels?.[name] ?? null }]);
    grid.append(panel(name, null, dotChart(rows, [0, 1])));
  }
  return block("Labels", "Share of sentences whose order looks most like this.", grid);
}

function jumps(systems) {
  const grid = el("div", { class: "panels" });
  for (const system of systems) if (Object.keys(system.jumps ?? {}).length) grid.append(panel(system.name, null, jumpChart(system.jumps)));
  return block("Jumps", "From each position to the one filled next, in positions; each panel has its own height.", grid);
}

function tags(systems) {
  const names = [...new Set(systems.flatMap((system) => Object.keys(system.by_tag ?? {})))];
  const grid = el("div", { class: "panels" });
  for (const name of names) grid.append(panel(name, null, dotChart(systems.map((system) => [system.name, system.by_tag?.[name] ?? null]), [0, 1])));
  return block("Parts of speech", "Mean relative step: 0 is first, 1 is last.", grid);
}

function table(systems, names) {
  const head = el("tr", {}, el("th", { scope: "col" }, "metric"), ...systems.map((system) => el("th", { scope: "col" }, system.name)));
  const rows = names.map((name) => {
    const digits = digitsOf(domainOf(name, systems.map((system) => system.figures?.[name])));
    const cells = systems.map((system) => {
      const metric = system.figures?.[name];
      if (metric?.value == null) return el("td", {}, "–");
      const interval = metric.low == null ? null : el("small", {}, `[${formatNumber(metric.low, digits)}, ${formatNumber(metric.high, digits)}]`);
      const chance = metric.null == null ? null : el("small", { class: "chance" }, `null ${formatNumber(metric.null, digits)}`);
      return el("td", { title: `${describe(metric, 4)}${metric.count == null ? "" : `; ${metric.count} counted`}` }, el("b", {}, formatNumber(metric.value, digits)), interval, chance);
    });
    return el("tr", {}, el("th", { scope: "row" }, name), ...cells);
  });
  const view = el("table", { class: "figures" }, el("thead", {}, head), el("tbody", {}, ...rows));
  const explanation = el("p", { class: "muted" }, "Value, 95 % bootstrap interval over sentences, and the same metric for random orders.");
  return el("details", { class: "block" }, el("summary", {}, "All numbers as a table"), explanation, scrolling("Table", view));
}

function scrolling(label, content) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);
}

function signatures(systems) {
  const list = el("dl", { class: "signatures" });
  for (const system of systems) list.append(el("dt", {}, system.name), el("dd", {}, el("code", {}, system.signature ?? "")));
  return el("details", { class: "block" }, el("summary", {}, "Signatures"), list);
}
