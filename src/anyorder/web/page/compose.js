// An order by hand: the reader picks the positions, the model writes them, an order may advise and finish.

import { ask } from "./api.js";
import { choice, el, offer } from "./dom.js";
import { candidateList, fillView } from "./fill.js";

const NOBODY = "";
const PACE = 90; // milliseconds between steps when the order finishes

/**
 * `onChange({size, advice, positions}, run)` is told of every new state, with the run once it is complete, else null.
 * `tell(line)` shows an error. Returns `{node, start(query, size, orders, longest), restore(made), set(options)}`.
 */
export function composer(onChange, tell) {
  let query = null; // {model, direction, text}
  let size = 0;
  let advice = NOBODY;
  let positions = []; // as the reader wants them
  let good = []; // as `state` has them
  let state = null;
  let trail = new Map(); // how many are filled → what could be seen then
  let turn = new AbortController();
  let finishing = false;

  const counsel = choice("Advice from", [], NOBODY, (value) => ((advice = value), halt(), forget(), refresh()));
  const number = el("input", { type: "number", min: "1", step: "1", class: "size", onchange: resize });
  const undo = el("button", { type: "button", class: "act", onclick: back }, "Undo");
  const restart = el("button", { type: "button", class: "act", onclick: clear }, "Restart");
  const finish = el("button", { type: "button", class: "act strong", onclick: () => (finishing ? halt() : rest()) });
  const told = el("span", { class: "unseen", role: "status" });
  const place = el("div", { class: "compose-view" });
  const cards = el("div", { class: "cards" });
  const all = el("details", { class: "all" }, el("summary", {}, "All candidates"), cards);
  all.addEventListener("toggle", () => drawCards());
  const node = el(
    "section",
    { class: "compose", "aria-labelledby": "compose-title", hidden: true },
    el("div", { class: "compose-head" }, el("h2", { id: "compose-title" }, "By hand"), el("p", { class: "quiet" }, "Pick a masked position: the model writes its best token there. Pale words are what it would write elsewhere.")),
    el("div", { class: "compose-bar" }, counsel, el("label", { class: "choice" }, el("span", {}, "Length"), number), el("span", { class: "acts" }, undo, restart, finish)),
    place,
    all,
    told,
  );
  const view = fillView(place, { tokens: [], steps: [], label: "by hand" }, { brackets: false, onPick: pick, candidates: seen });

  /** What the model offers at a masked position, or offered where it has written since. */
  function seen(i) {
    const at = state?.steps[i] ?? null;
    return (at === null ? state : trail.get(at - 1))?.candidates[i] ?? null;
  }

  function pick(i) {
    if (positions.includes(i)) return;
    finishing = false;
    positions = [...positions, i];
    refresh();
  }

  function back() {
    finishing = false;
    positions = positions.slice(0, -1);
    refresh();
  }

  function clear() {
    finishing = false;
    positions = [];
    refresh();
  }

  function resize() {
    const wanted = Math.round(Number(number.value));
    size = Math.min(Number(number.max), Math.max(1, wanted || size));
    number.value = String(size);
    forget();
    clear();
  }

  function halt() {
    finishing = false;
    drawBar();
  }

  function forget() {
    trail = new Map();
  }

  /** The order goes on from here, one step after the other. */
  async function rest() {
    finishing = true;
    drawBar();
    const slow = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    while (finishing && state?.next.position != null) {
      positions = [...good, state.next.position];
      if (!(await refresh())) break;
      if (slow) await new Promise((resolve) => setTimeout(resolve, PACE));
    }
    halt();
  }

  /** Asks for the state with these positions; the latest wish counts. True if it is the one shown now. */
  async function refresh() {
    turn.abort();
    turn = new AbortController();
    const { signal } = turn;
    const wanted = positions;
    node.setAttribute("aria-busy", "true");
    drawBar();
    try {
      const filled = wanted.map((position) => ({ position }));
      const found = await ask("api/step", { ...query, length: size, filled, order: advice || null }, signal);
      tell("");
      good = wanted;
      state = found;
      trail.set(good.length, state);
      draw();
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      positions = good;
      finishing = false;
      tell(error.message);
      return false;
    } finally {
      if (turn.signal === signal) {
        node.removeAttribute("aria-busy");
        drawBar();
      }
    }
  }

  function draw() {
    const run = { tokens: state.tokens, steps: state.steps, logprobs: state.logprobs };
    const guesses = state.candidates.map((here) => here?.[0]?.token ?? null);
    const { scores, position } = state.next;
    view.update({ ...run, label: "by hand", guesses, scores, next: position });
    view.show(view.last);
    drawCards();
    const masked = state.tokens.filter((token) => token === null).length;
    const newest = good.length ? `Position ${good.at(-1) + 1} is ${state.tokens[good.at(-1)]}. ` : "";
    told.textContent = masked ? `${newest}${masked} masked.` : `${newest}Complete: ${state.text}`;
    onChange({ size, advice, positions: good }, masked ? null : { ...run, text: state.text, length: size, order: "by hand", asks: advice || null });
  }

  function drawBar() {
    undo.disabled = restart.disabled = !positions.length;
    finish.textContent = finishing ? "Stop" : "Let the order finish";
    finish.disabled = !finishing && (!advice || positions.length >= size);
  }

  function drawCards() {
    if (!all.open || !state) return;
    cards.replaceChildren();
    state.candidates.forEach((here, i) => {
      if (!here) return;
      const score = state.next.scores[i];
      const name = `Position ${i + 1}${score == null ? "" : ` · ${Math.round(score * 100)} %`}`;
      const head = el("button", { type: "button", class: i === state.next.position ? "next" : "", onclick: () => pick(i) }, name);
      cards.append(el("div", { class: "card" }, head, candidateList(here)));
    });
    if (!cards.children.length) cards.append(el("p", { class: "quiet" }, "Nothing is masked."));
  }

  return {
    node,
    /** Another sentence: all masks. The same sentence: as it was. */
    start(next, wantedSize, orders, longest) {
      const same = query && !node.hidden && ["model", "direction", "text"].every((name) => query[name] === next[name]);
      const { model, direction, text } = next;
      query = { model, direction, text };
      const known = [...new Set([...orders, ...next.orders])];
      if (!same || (advice && !known.includes(advice))) advice = next.orders[0] ?? NOBODY;
      offer(counsel.querySelector("select"), [[NOBODY, "nobody"], ...known.map((order) => [order, order])], advice);
      node.hidden = false;
      if (same) return refresh();
      finishing = false;
      size = wantedSize;
      number.value = String(size);
      number.max = String(longest);
      positions = good = [];
      forget();
      return refresh();
    },
    /** What a link says. */
    restore(made) {
      size = made.size;
      number.value = String(size);
      advice = made.advice;
      counsel.querySelector("select").value = advice;
      if (counsel.querySelector("select").value !== advice) advice = counsel.querySelector("select").value = NOBODY;
      positions = made.positions;
      forget();
      return refresh();
    },
    set: (options) => view.set(options),
    pause() {
      halt();
      turn.abort();
    },
  };
}
