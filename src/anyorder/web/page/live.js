// The explorer: a sentence in several orders side by side, each step open to questions, and an order by hand.

import { ask, looker } from "./api.js";
import { permutation } from "./arcs.js";
import { ramp } from "./charts.js";
import { scale } from "./colour.js";
import { composer } from "./compose.js";
import { check, choice, el, icon, number, percent } from "./dom.js";
import { fillView } from "./fill.js";
import { form } from "./form.js";
import { address, read } from "./link.js";
import { player } from "./player.js";
import { themeButton } from "./theme.js";

themeButton(document.getElementById("theme"));
const main = document.getElementById("main");
start().catch((error) => main.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message)));

async function start() {
  const offered = await ask("api/models");
  const plural = offered.models.length === 1 ? "" : "s";
  document.getElementById("about").textContent = `${offered.models.length} model${plural} on this server`;
  document.getElementById("tabs").append(el("a", { href: "api/docs" }, "API"));
  main.replaceChildren(explorer(offered));
  performance.mark("ready");
}

function explorer(offered) {
  const options = { arcs: true, brackets: false, colour: "step" };
  const trouble = el("p", { class: "trouble", role: "alert", "aria-live": "assertive" });
  const tell = (line) => {
    trouble.textContent = line.replace(/\s+/g, " ");
  };
  const look = looker(tell);
  let asked = null; // the query of what is shown
  let runs = [];
  let hand = null; // the run made by hand, once it is complete
  let made = null; // where composing stands
  let views = [];
  let turn = new AbortController();

  const wishes = form(offered, () => translate());
  const steps = player((step) => views.forEach((view) => view.show(step)));
  const grid = el("div", { class: "views" });
  const said = el("p", { class: "source" });
  const copied = el("span", { class: "unseen", role: "status" });
  const copy = el("button", { type: "button", class: "act", onclick: share }, icon("link"), el("span", {}, "Copy link"));
  const [from, to] = [el("span", {}, "first step"), el("span", {}, "last")];
  const set = (changes) => {
    Object.assign(options, changes);
    views.forEach((view) => view.set(changes));
    hands.set({ ...changes, brackets: false });
    [from.textContent, to.textContent] = options.colour === "step" ? ["first step", "last"] : ["0 %", "probability 100 %"];
  };
  const display = el(
    "div",
    { class: "display" },
    choice("Colour", [["step", "step"], ["probability", "probability"]], options.colour, (colour) => set({ colour })),
    check("arcs", options.arcs, (arcs) => set({ arcs })),
    check("brackets", options.brackets, (brackets) => set({ brackets })),
    el("span", { class: "key" }, from, ramp(scale), to),
    copy,
    copied,
  );
  const results = el("section", { class: "results", "aria-label": "Translations", hidden: true }, said, el("div", { class: "controls" }, steps.node, display), grid);
  const hands = composer((where, run) => {
    made = where;
    remember();
    if (JSON.stringify(run) !== JSON.stringify(hand)) {
      hand = run;
      draw(run ? Infinity : steps.step);
    }
  }, tell);
  const keys = el("p", { class: "quiet keys" }, el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "Enter"), " translate  ", el("kbd", {}, "space"), " play  ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " step  ", el("kbd", {}, "Home"), " ", el("kbd", {}, "End"), " ends  ", el("kbd", {}, "Tab"), " into a sentence, then ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " and ", el("kbd", {}, "Enter"));
  const empty = el("p", { class: "notice" }, "Type a sentence, choose orders, and watch them fill the translation side by side. Then fill it in an order of your own.");
  const node = el("div", { class: "live" }, wishes.node, trouble, empty, results, hands.node, keys);
  wishes.node.addEventListener("input", () => (said.hidden = wishes.query().text === asked?.text)); // whose these are
  addEventListener("hashchange", follow);
  follow();
  return node;

  /** Asks for all orders at once and plays them. */
  async function translate(play = true) {
    const query = wishes.query();
    tell(wishes.problem());
    if (trouble.textContent) return false;
    turn.abort();
    turn = new AbortController();
    const { signal } = turn;
    look.cancel();
    hands.pause();
    steps.pause();
    wishes.busy(true);
    results.setAttribute("aria-busy", "true");
    try {
      ({ runs } = await ask("api/translate", { ...query, budget: "one" }, signal));
    } catch (error) {
      if (!signal.aborted) tell(error.message);
      return false;
    } finally {
      if (turn.signal === signal) {
        wishes.busy(false);
        results.removeAttribute("aria-busy");
      }
    }
    const { model, direction, text } = query;
    if (asked?.model !== model || asked.direction !== direction || asked.text !== text) hand = made = null;
    asked = query;
    said.textContent = query.text;
    said.hidden = true;
    empty.hidden = true;
    results.hidden = false;
    const moving = play && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    draw(moving ? 0 : Infinity);
    remember();
    if (moving) steps.play();
    if (results.getBoundingClientRect().top > innerHeight * 0.7) results.scrollIntoView({ block: "start" });
    await hands.start(query, runs[0].length, wishes.orders, wishes.longest);
    return true;
  }

  /** The runs and the one made by hand, at a step. */
  function draw(step) {
    for (const view of views) view.destroy();
    views = [...runs, ...(hand ? [hand] : [])].map((run) => fillView(grid, described(run), { ...options, onStep: (at) => (steps.pause(), steps.go(at)), candidates: (i, view) => about(run, i, view) }));
    const playing = steps.playing;
    steps.reset(views.reduce((most, view) => Math.max(most, view.last), 0), step);
    for (const view of views) view.show(steps.step);
    if (playing && step !== Infinity) steps.play();
  }

  function described(run) {
    const mean = run.logprobs.reduce((sum, p) => sum + p, 0) / (run.logprobs.length || 1);
    return { ...run, figures: [["log p", number(mean)], ["length", String(run.length)]] };
  }

  /** What the model would write and the order would choose: at the step shown, or before a token was written. */
  async function about(run, i, view) {
    const masked = run.steps[i] > view.step;
    const step = masked ? view.step : run.steps[i] - 1;
    const filled = permutation(run.steps).filter((at) => run.steps[at] <= step).map((position) => ({ position }));
    const { model, direction, text } = asked;
    const order = run.asks === undefined ? run.order : run.asks;
    const state = await look({ model, direction, text, length: run.length, filled, order });
    if (!state) return null;
    const { scores, position, policy } = state.next;
    if (view.step === step) view.weigh(scores, position);
    const share = scores[i] == null ? [] : [[policy ? "chosen by the policy" : "score of the order", percent(scores[i], 1)]];
    return { candidates: state.candidates[i], rows: share };
  }

  function remember() {
    if (!asked) return;
    history.replaceState(null, "", `#${address(asked, made)}`);
  }

  async function share() {
    const link = location.href;
    let line = "Link copied";
    try {
      await navigator.clipboard.writeText(link);
    } catch {
      line = "See the address bar"; // a page that is not from this machine may not copy
    }
    copied.textContent = line;
    copy.lastChild.textContent = line;
    setTimeout(() => (copy.lastChild.textContent = "Copy link"), 1800);
  }

  /** Shows what the address names. */
  async function follow() {
    const found = read(location.hash);
    if (!found) return;
    const line = wishes.put(found.query);
    const composed = found.made;
    if (!(await translate(false))) return;
    if (composed) await hands.restore(composed);
    if (line) tell(line);
  }
}
