// The explorer: a sentence, a text with masks or a puzzle in several orders side by side, the state at each step, and an order by hand.

import { request, stateFetcher } from "./api.js";
import { permutation } from "./arcs.js";
import { onCanvas, verdict } from "./canvas.js";
import { ramp } from "./charts.js";
import { scale } from "./color.js";
import { composer } from "./compose.js";
import { check, choice, el, formatNumber, icon, percent } from "./dom.js";
import { fillView } from "./fill.js";
import { queryForm } from "./form.js";
import { fromHash, hideToken, toHash } from "./link.js";
import { player } from "./player.js";
import { themeButton } from "./theme.js";
import { changedCount, writesOf } from "./writes.js";

hideToken();
themeButton(document.getElementById("theme"));
const main = document.getElementById("main");
start().catch((error) => main.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message)));

async function start() {
  const server = await request("api/models");
  const plural = server.models.length === 1 ? "" : "s";
  document.getElementById("about").textContent = `${server.models.length} model${plural} on this server`;
  document.getElementById("tabs").append(el("a", { href: "api/docs" }, "API"));
  const { node, open } = explorer(server);
  main.replaceChildren(node);
  performance.mark("ready");
  await open();
}

function explorer(server) {
  const options = { arcs: true, brackets: false, color: "step" };
  const errorLine = el("p", { class: "error", role: "alert", "aria-live": "assertive" });
  const showError = (line) => {
    errorLine.textContent = line.replace(/\s+/g, " ");
  };
  const fetchState = stateFetcher(showError);
  let shownQuery = null; // the query of what is shown
  let runs = [];
  let handRun = null; // the run by hand, once it is complete
  let byHand = null; // {size, advice, fills}
  let views = [];
  let controller = new AbortController();

  const form = queryForm(server, () => decode(), showError);
  const steps = player((step) => views.forEach((view) => view.show(step)));
  const grid = el("div", { class: "views" });
  const source = el("p", { class: "source" });
  const copyStatus = el("span", { class: "visually-hidden", role: "status" });
  const copy = el("button", { type: "button", class: "act", onclick: copyLink }, icon("link"), el("span", {}, "Copy link"));
  const [legendStart, legendEnd] = [el("span", {}, "first step"), el("span", {}, "last")];
  const setDisplay = (changes) => {
    Object.assign(options, changes);
    views.forEach((view) => view.set(changes));
    hand.set({ ...changes, brackets: false });
    [legendStart.textContent, legendEnd.textContent] = options.color === "step" ? ["first step", "last"] : ["0 %", "probability 100 %"];
  };
  const lineOptions = [check("arcs", options.arcs, (arcs) => setDisplay({ arcs })), check("brackets", options.brackets, (brackets) => setDisplay({ brackets }))]; // a grid has neither
  const display = el(
    "div",
    { class: "display" },
    choice("Color", [["step", "step"], ["probability", "probability"]], options.color, (color) => setDisplay({ color })),
    ...lineOptions,
    el("span", { class: "key" }, legendStart, ramp(scale), legendEnd),
    copy,
    copyStatus,
  );
  const results = el("section", { class: "results", "aria-label": "Results", hidden: true }, source, el("div", { class: "controls" }, steps.node, display), grid);
  const hand = composer((progress, run) => {
    byHand = progress;
    saveAddress();
    if (JSON.stringify(run) !== JSON.stringify(handRun)) {
      handRun = run;
      draw(run ? Infinity : steps.step);
    }
  }, showError);
  const keys = el("p", { class: "muted keys" }, el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "Enter"), " start  ", el("kbd", {}, "space"), " play  ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " step  ", el("kbd", {}, "Home"), " ", el("kbd", {}, "End"), " ends  ", el("kbd", {}, "Tab"), " into a sentence, then ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " and ", el("kbd", {}, "Enter"));
  const notice = el("p", { class: "notice" }, "Type a text, choose orders, and watch them fill it side by side. Then fill it in an order of your own.");
  const node = el("div", { class: "explorer" }, form.node, errorLine, notice, results, hand.node, keys);
  form.node.addEventListener("input", () => (source.hidden = form.query().text === shownQuery?.text)); // what the results translate
  addEventListener("hashchange", openLink);
  return { node, open };

  /** Shows the state in the address; without one, an example. */
  async function open() {
    if (await openLink()) return;
    if (await form.showExample()) await decode({ scroll: false });
  }

  /** Decodes in all orders at once and plays them. */
  async function decode({ play = true, scroll = true } = {}) {
    showError(form.problem());
    if (errorLine.textContent || !(await form.check())) return false;
    const query = form.query();
    const { kind, grid: cells } = form;
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    fetchState.cancel();
    hand.pause();
    steps.pause();
    form.busy(true);
    results.setAttribute("aria-busy", "true");
    try {
      const found = await request("api/decode", { ...query, reference: query.reference || undefined }, signal);
      runs = found.runs.map((run) => withGrid(onCanvas(run), cells));
    } catch (error) {
      if (!signal.aborted) showError(error.message);
      return false;
    } finally {
      if (controller.signal === signal) {
        form.busy(false);
        results.removeAttribute("aria-busy");
      }
    }
    const { model, task, text } = query;
    if (shownQuery?.model !== model || shownQuery.task !== task || shownQuery.text !== text) handRun = byHand = null;
    shownQuery = query;
    grid.classList.toggle("grids", Boolean(cells));
    if (cells) grid.style.setProperty("--columns", cells.columns);
    for (const option of lineOptions) option.hidden = Boolean(cells);
    source.textContent = query.text;
    source.hidden = true;
    notice.hidden = true;
    results.hidden = false;
    const animated = play && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    draw(animated ? 0 : Infinity);
    saveAddress();
    if (animated) steps.play();
    if (scroll && results.getBoundingClientRect().top > innerHeight * 0.7) results.scrollIntoView({ block: "start" });
    await hand.start(query, kind === "translation" ? runs[0].length : null, cells, form.orders, form.longest);
    return true;
  }

  /** An answer to a puzzle as a grid that says whether it is right. */
  function withGrid(run, cells) {
    return cells ? { ...run, grid: cells, text: verdict(run) } : run;
  }

  /** Draws the runs, and the one by hand, at a step. */
  function draw(step) {
    for (const view of views) view.destroy();
    views = [...runs, ...(handRun ? [handRun] : [])].map((run) => fillView(grid, withMetrics(run), { ...options, onStep: (at) => (steps.pause(), steps.go(at)), candidates: (i, view) => candidatesAt(run, i, view) }));
    const playing = steps.playing;
    steps.reset(views.reduce((most, view) => Math.max(most, view.last), 0), step);
    for (const view of views) view.show(steps.step);
    if (playing && step !== Infinity) steps.play();
  }

  function withMetrics(run) {
    const mean = run.logprobs.reduce((sum, p) => sum + p, 0) / (run.length || 1); // null, a given token, adds nothing
    const last = Math.max(0, ...run.steps);
    const metrics = [["log p", formatNumber(mean)], [shownQuery.task ? "length" : "filled", String(run.length)]];
    if (run.bleu != null) metrics.unshift(["BLEU", formatNumber(run.bleu, 1)]);
    if (last !== run.length) metrics.push(["steps", String(last)]);
    if (run.writes) metrics.push(["changed", String(changedCount(writesOf(run)))]);
    return { ...run, metrics };
  }

  /**
   * The model's candidates and the order's scores: at the step that is shown, or before a token was written. Where several
   * positions were filled at once, filling them one after another would write other tokens, so the tokens are sent too. With a
   * revision nothing says what was masked at a step, so there are none.
   */
  async function candidatesAt(run, i, view) {
    if (run.writes) return null;
    const masked = run.steps[i] > view.step;
    const step = masked ? view.step : run.steps[i] - 1;
    const order = permutation(run.steps);
    const inParallel = new Set(order.map((position) => run.steps[position])).size < order.length;
    const filled = order
      .filter((position) => run.steps[position] <= step)
      .map((position) => (inParallel || run.given?.[position] ? { position, token: run.tokens[position] } : { position }));
    const { model, task, text } = shownQuery;
    const adviser = run.advice === undefined ? run.order : run.advice;
    const state = await fetchState({ model, task, text, length: task && run.length, filled, order: adviser });
    if (!state) return null;
    const { scores, position, policy } = state.next;
    if (view.step === step) view.showScores(scores, position);
    const rows = scores[i] == null ? [] : [[policy ? "chosen by the policy" : "score of the order", percent(scores[i], 1)]];
    return { candidates: state.candidates[i], rows };
  }

  function saveAddress() {
    if (shownQuery) window.history.replaceState(null, "", `#${toHash(shownQuery, byHand)}`);
  }

  async function copyLink() {
    const link = location.href;
    let line = "Link copied";
    try {
      await navigator.clipboard.writeText(link);
    } catch {
      line = "See the address bar"; // browsers let only secure origins copy
    }
    copyStatus.textContent = line;
    copy.lastChild.textContent = line;
    setTimeout(() => (copy.lastChild.textContent = "Copy link"), 1800);
  }

  /** Shows the state in the address; false if it holds none. */
  async function openLink() {
    const link = fromHash(location.hash);
    if (!link) return false;
    const problem = form.restore(link.query);
    if (!(await decode({ play: false }))) return true;
    if (link.byHand) await hand.restore(link.byHand);
    if (problem) showError(problem);
    return true;
  }
}
