// The report: a list of sentences, the chosen one in all orders side by side, and the corpus metrics.

import { ramp } from "./charts.js";
import { scale } from "./color.js";
import { corpusView } from "./corpus.js";
import { disagreement, embedded, labelText } from "./data.js";
import { check, choice, el, formatNumber } from "./dom.js";
import { fillView } from "./fill.js";
import { list } from "./list.js";
import { player } from "./player.js";
import { themeButton } from "./theme.js";
import { changedCount, writesOf } from "./writes.js";

const ROW = 76;
let redraw = () => {};
themeButton(document.getElementById("theme"), () => redraw());
start().catch((error) => {
  document.getElementById("main").replaceChildren(el("p", { class: "notice", role: "alert" }, `This report cannot be read: ${error.message}`));
});

async function start() {
  // Let the browser paint the frame of the page before the data is unpacked.
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const corpus = await embedded();
  if (!corpus) throw new Error("it holds no data");
  const plural = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const [one, many] = corpus.grid ? ["puzzle", "Puzzles"] : ["sentence", "Sentences"];
  document.getElementById("about").textContent = `${plural(corpus.count, one)} · ${plural(corpus.systems.length, "order")}`;
  const sentences = sentencesView(corpus);
  const corpusPanel = el("div", { class: "corpus", id: "panel-corpus", role: "tabpanel", "aria-labelledby": "tab-corpus", hidden: true });
  document.getElementById("main").replaceChildren(sentences.node, corpusPanel);
  let drawn = false;
  const isDark = () => document.documentElement.dataset.theme === "dark";
  redraw = () => {
    if (drawn) corpusView(corpusPanel, corpus, isDark());
  };
  const follow = tabs([["sentences", many, sentences.node], ["corpus", "Corpus", corpusPanel]], (name) => {
    if (name === "corpus" && !drawn) {
      drawn = true;
      redraw();
    }
  });
  sentences.follow();
  addEventListener("hashchange", () => {
    follow();
    sentences.follow();
  });
  performance.mark("ready");
}

/** Tabs that show one panel at a time; the address keeps which. */
function tabs(all, onShow) {
  const bar = document.getElementById("tabs");
  bar.setAttribute("role", "tablist");
  bar.setAttribute("aria-label", "Views");
  const buttons = all.map(([name, text, panel]) => {
    const button = el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": panel.id, onclick: () => show(name) }, text);
    bar.append(button);
    return button;
  });
  bar.addEventListener("keydown", (event) => {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!offset) return;
    const target = (buttons.indexOf(document.activeElement) + offset + all.length) % all.length;
    show(all[target][0]);
    buttons[target].focus();
  });
  function show(name) {
    all.forEach(([other, , panel], i) => {
      panel.hidden = other !== name;
      buttons[i].setAttribute("aria-selected", String(other === name));
      buttons[i].tabIndex = other === name ? 0 : -1;
    });
    onShow(name);
    saveAddress({ view: name === "sentences" ? null : name });
  }
  function follow() {
    const wanted = addressParameters().get("view");
    show(all.some(([name]) => name === wanted) ? wanted : all[0][0]);
  }
  follow();
  return follow;
}

/** The parameters after # in the address. */
function addressParameters() {
  return new URLSearchParams(location.hash.slice(1));
}

let pending = {};
let timer = null;

/** Puts the view, sentence and step into the address, so that it can be shared, once they stop changing. */
function saveAddress(changes) {
  Object.assign(pending, changes);
  clearTimeout(timer);
  timer = setTimeout(() => {
    const parameters = addressParameters();
    for (const [name, value] of Object.entries(pending)) {
      if (value === null) parameters.delete(name);
      else parameters.set(name, value);
    }
    pending = {};
    try {
      history.replaceState(null, "", `#${parameters}`);
    } catch {
      // The page is in a frame that has no address.
    }
  }, 250);
}

function sentencesView(corpus) {
  const one = corpus.grid ? "puzzle" : "sentence";
  const state = { chosen: -1, sort: "given", a: 0, b: Math.min(1, corpus.systems.length - 1), by: corpus.measures[0], query: "" };
  const options = { arcs: true, brackets: true, color: "step" };
  const shown = corpus.systems.map((_, i) => i < 6);
  let views = [];
  let searchTexts = null;
  let disagreements = null;

  const rows = list(corpus.grid ? "Puzzles" : "Sentences", ROW, drawRow, choose);
  const found = el("p", { class: "muted found", role: "status" });
  const search = el("input", { type: "search", placeholder: corpus.grid ? "Search puzzle or answer" : "Search source or translation", "aria-label": `Search ${one}s`, oninput: () => ((state.query = search.value.trim().toLowerCase()), arrange()) });
  const extra = el("div", { class: "extra" });
  const sorts = [["given", "as given"], ["longest", "longest first"], ["shortest", "shortest first"]];
  if (corpus.labels.length) sorts.push(["label", "label"]);
  if (corpus.systems.length > 1) sorts.splice(1, 0, ["beat", "A beats B most"], ["disagree", "orders disagree most"], ["agree", "orders agree most"]);
  const side = el("aside", { class: "side", "aria-label": `Choose a ${one}` }, search, choice("Sort", sorts, state.sort, (value) => ((state.sort = value), drawExtra(), arrange())), extra, found, rows.node);

  const head = el("div", { class: "sentence-head" });
  const grid = el("div", { class: corpus.grid ? "views grids" : "views" });
  if (corpus.grid) grid.style.setProperty("--columns", corpus.grid.columns);
  const steps = player((step) => {
    for (const view of views) view.show(step);
    saveAddress({ step });
  });
  const [legendStart, legendEnd] = [el("span", {}, "first step"), el("span", {}, "last")];
  const legend = el("span", { class: "key" }, legendStart, ramp(scale), legendEnd);
  const setDisplay = (changes) => {
    Object.assign(options, changes);
    for (const view of views) view.set(changes);
    [legendStart.textContent, legendEnd.textContent] = options.color === "step" ? ["first step", "last"] : ["0 %", "probability 100 %"];
  };
  const lineOptions = corpus.grid ? [] : [check("arcs", true, (arcs) => setDisplay({ arcs })), check("brackets", true, (brackets) => setDisplay({ brackets }))];
  const display = el(
    "div",
    { class: "display" },
    choice("Color", [["step", "step"], ["probability", "probability"]], "step", (color) => setDisplay({ color })),
    ...lineOptions,
    legend,
  );
  const orders = el("fieldset", { class: "orders" }, el("legend", { class: "visually-hidden" }, "Orders shown"));
  corpus.systems.forEach((system, s) => orders.append(check(system.name, shown[s], (on) => ((shown[s] = on), drawViews(steps.step)))));
  const keys = el("p", { class: "muted keys" }, el("kbd", {}, "space"), " play  ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " step  ", el("kbd", {}, "Home"), " ", el("kbd", {}, "End"), " ends  ", el("kbd", {}, "J"), " ", el("kbd", {}, "K"), ` ${one}`);
  const detail = el("div", { class: "detail" }, head, el("div", { class: "controls" }, steps.node, display), corpus.systems.length > 1 ? orders : null, grid, keys);
  const node = el("div", { class: "sentences", id: "panel-sentences", role: "tabpanel", "aria-labelledby": "tab-sentences" }, side, detail);

  document.addEventListener("keydown", (event) => {
    if (node.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input:not([type=checkbox], [type=range]), select, textarea")) return;
    if (event.key === "j" || event.key === "J") rows.move(1);
    else if (event.key === "k" || event.key === "K") rows.move(-1);
    else if (event.key === "/") {
      event.preventDefault();
      search.focus();
    }
  });

  function drawExtra() {
    const systems = corpus.systems.map((system, i) => [String(i), system.name]);
    extra.replaceChildren();
    if (state.sort === "beat") {
      extra.append(choice("A", systems, String(state.a), (value) => ((state.a = Number(value)), arrange())));
      extra.append(choice("B", systems, String(state.b), (value) => ((state.b = Number(value)), arrange())));
      extra.append(choice("by", corpus.measures.map((name) => [name, name]), state.by, (value) => ((state.by = value), arrange())));
    } else if (state.sort === "label") {
      extra.append(choice("of", systems, String(state.a), (value) => ((state.a = Number(value)), arrange())));
    }
  }

  function margin(i) {
    const [a, b] = [corpus.measure(state.by, i, state.a), corpus.measure(state.by, i, state.b)];
    return a === null || b === null ? null : a - b;
  }

  function disagreementOf(i) {
    disagreements ??= Float64Array.from({ length: corpus.count }, (_, k) => disagreement(corpus.systems.map((_, s) => corpus.steps(k, s))));
    return disagreements[i];
  }

  function matches(i) {
    searchTexts ??= Array.from({ length: corpus.count }, (_, k) => [corpus.source(k), corpus.reference(k) ?? "", ...corpus.systems.map((_, s) => corpus.text(k, s))].join("\n").toLowerCase());
    return searchTexts[i].includes(state.query);
  }

  /** Filters and sorts the list; ties keep the given order. */
  function arrange(reveal = false) {
    let items = Array.from({ length: corpus.count }, (_, i) => i);
    if (state.query) items = items.filter(matches);
    const sortKey = {
      beat: (i) => margin(i) ?? -Infinity,
      longest: corpus.length,
      shortest: (i) => -corpus.length(i),
      disagree: disagreementOf,
      agree: (i) => -disagreementOf(i),
      label: (i) => -(corpus.labels.indexOf(corpus.label(i, state.a)) + 1 || 99),
    }[state.sort];
    if (sortKey) {
      const keys = new Map(items.map((i) => [i, sortKey(i)]));
      items.sort((x, y) => keys.get(y) - keys.get(x) || x - y);
    }
    found.textContent = state.query ? `${items.length.toLocaleString("en")} of ${corpus.count.toLocaleString("en")}` : "";
    found.hidden = !state.query;
    rows.set(items, state.chosen, reveal);
  }

  function drawRow(row, i) {
    const detail = {
      beat: () => signed(margin(i)),
      label: () => labelOf(i, state.a) ?? "–",
      disagree: () => formatNumber(disagreementOf(i)),
      agree: () => formatNumber(disagreementOf(i)),
    }[state.sort];
    row.append(el("span", { class: "row-head" }, el("b", {}, String(i + 1)), el("span", {}, detail ? detail() : `${corpus.length(i)} ${corpus.grid ? "empty cells" : "tokens"}`)), el("span", { class: "row-text" }, corpus.source(i)));
  }

  function choose(i, step) {
    state.chosen = i;
    head.replaceChildren(el("p", { class: "eyebrow" }, `${corpus.grid ? "Puzzle" : "Sentence"} ${i + 1}`), el("p", { class: "source" }, corpus.source(i)));
    const reference = corpus.reference(i);
    if (reference) head.append(el("p", { class: "reference" }, el("span", { class: "muted" }, corpus.grid ? "solution " : "reference "), reference));
    drawViews(step);
    saveAddress({ sentence: i + 1, step: step ?? null });
  }

  function drawViews(step) {
    for (const view of views) view.destroy();
    views = corpus.systems.flatMap((_, s) => (shown[s] ? [fillView(grid, runWithMetrics(state.chosen, s), { ...options, onStep: (at) => (steps.pause(), steps.go(at)) })] : []));
    const last = views.reduce((most, view) => Math.max(most, view.last), 0);
    steps.reset(last, step ?? last);
    for (const view of views) view.show(steps.step);
  }

  function labelOf(i, s) {
    return labelText(corpus.label(i, s), corpus.steps(i, s));
  }

  function runWithMetrics(i, s) {
    const metrics = corpus.measures.filter((name) => /bleu/i.test(name)).map((name) => [name.replace(/^sentence bleu$/, "BLEU"), formatNumber(corpus.measure(name, i, s), 1)]);
    metrics.push(["log p", formatNumber(corpus.measure("mean log-probability", i, s))]);
    const run = corpus.run(i, s);
    if (run.writes) metrics.push(["changed", String(changedCount(writesOf(run)))]);
    return { ...run, note: labelOf(i, s), metrics };
  }

  /** Shows the sentence in the address, or the first one. */
  function follow() {
    const parameters = addressParameters();
    const wanted = Math.min(corpus.count, Math.max(1, Math.trunc(Number(parameters.get("sentence"))) || 1)) - 1;
    const step = parameters.has("sentence") && parameters.get("step") ? Math.trunc(Number(parameters.get("step"))) || 0 : undefined;
    state.chosen = wanted;
    arrange(true);
    choose(wanted, step);
  }

  return { node, follow };
}

function signed(value) {
  if (value === null) return "–";
  return (value > 0 ? "+" : "") + formatNumber(value, Math.abs(value) >= 10 ? 1 : 2);
}
