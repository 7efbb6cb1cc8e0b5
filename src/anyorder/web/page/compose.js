// Filling by hand: the reader picks positions and, if wanted, the words; the model writes, and an order may advise and
// finish.

import { request } from "./api.js";
import { verdict } from "./canvas.js";
import { choice, el, setOptions } from "./dom.js";
import { candidateList, fillView } from "./fill.js";

const NO_ADVICE = "";
const STEP_DELAY = 90; // milliseconds between steps while the order finishes

/**
 * `onChange({size, advice, fills}, run)` is called after every change; `run` is null until nothing is masked. `showError(line)`
 * shows an error, or clears it with "". A fill is {position, token}; a token of null is the model's best. Returns `{node,
 * start(query, size, grid, orders, longest), restore(byHand), set(options), pause()}`. Only a translation has a size that can
 * be chosen, and only a puzzle has a grid; both are null elsewhere.
 */
export function composer(onChange, showError) {
  let query = null; // {model, task, text, reference}
  let grid = null;
  let size = 0;
  let advice = NO_ADVICE;
  let wanted = []; // the fills that the reader wants
  let shown = []; // the fills of `state`
  let state = null;
  let history = new Map(); // number of fills → the state at that time
  let selected = null; // the position whose word can be changed
  let controller = new AbortController();
  let finishing = false;

  const adviser = choice("Advice from", [], NO_ADVICE, (value) => ((advice = value), stop(), clearHistory(), refresh()));
  const sizeInput = el("input", { type: "number", min: "1", step: "1", class: "size", onchange: resize });
  const sizeLabel = el("label", { class: "choice" }, el("span", {}, "Length"), sizeInput);
  const undo = el("button", { type: "button", class: "act", onclick: () => setFills(wanted.slice(0, -1)) }, "Undo");
  const restart = el("button", { type: "button", class: "act", onclick: () => setFills([]) }, "Restart");
  const finish = el("button", { type: "button", class: "act strong", onclick: () => (finishing ? stop() : finishWithOrder()) });
  const status = el("span", { class: "visually-hidden", role: "status" });
  const place = el("div", { class: "compose-view" });
  const wordTitle = el("span", { class: "muted", id: "word-title" });
  const wordChoices = el("span", { class: "word-choices" });
  const wordInput = el("input", { type: "text", class: "word-input", maxlength: "100", placeholder: "another subword", "aria-label": "Another subword", spellcheck: "false", autocomplete: "off", autocapitalize: "none" });
  const write = el("button", { type: "submit", class: "act" }, "Write");
  const wordForm = el("form", { class: "word-panel", "aria-labelledby": "word-title", hidden: true, onsubmit: submitWord }, wordTitle, wordChoices, wordInput, write);
  const cards = el("div", { class: "cards" });
  const all = el("details", { class: "all" }, el("summary", {}, "All candidates"), cards);
  all.addEventListener("toggle", () => drawCards());
  const node = el(
    "section",
    { class: "compose", "aria-labelledby": "compose-title", hidden: true },
    el(
      "div",
      { class: "compose-head" },
      el("h2", { id: "compose-title" }, "By hand"),
      el("p", { class: "muted" }, "Pick a masked position: the model writes its best token there, and you may choose another. Pale words are what it would write elsewhere."),
    ),
    el("div", { class: "compose-bar" }, adviser, sizeLabel, el("span", { class: "acts" }, undo, restart, finish)),
    place,
    wordForm,
    all,
    status,
  );
  const view = fillView(place, { tokens: [], steps: [], label: "by hand" }, { brackets: false, onPick: (i) => choose(i, null), onSelect: select, candidates: knownCandidates });

  /** The model's candidates at a masked position, or those from which a filled one was chosen, if they were seen. */
  function knownCandidates(i) {
    const at = state?.steps[i] ?? null;
    return (at === null ? state : history.get(at - 1))?.candidates[i] ?? null;
  }

  /** Writes a token at a position: the next one to fill, or one that is filled already; what follows is written again. */
  function choose(position, token) {
    const index = wanted.findIndex((fill) => fill.position === position);
    selected = position;
    if (index < 0) return setFills([...wanted, { position, token }]);
    if (wanted[index].token === token) return drawWordPanel();
    for (const count of history.keys()) if (count > index) history.delete(count);
    return setFills(wanted.map((fill, i) => (i === index ? { position, token } : fill)));
  }

  function setFills(fills) {
    finishing = false;
    wanted = fills;
    return refresh();
  }

  function select(position) {
    selected = position;
    drawWordPanel();
  }

  function submitWord(event) {
    event.preventDefault();
    const token = wordInput.value.trim();
    if (token && selected !== null) choose(selected, token);
  }

  function resize() {
    const number = Math.round(Number(sizeInput.value));
    size = Math.min(Number(sizeInput.max), Math.max(1, number || size));
    sizeInput.value = String(size);
    clearHistory();
    setFills([]);
  }

  function stop() {
    finishing = false;
    drawBar();
  }

  function clearHistory() {
    history = new Map();
  }

  /** The order fills the rest, one step after the other. */
  async function finishWithOrder() {
    finishing = true;
    drawBar();
    const animated = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    while (finishing && state?.next.position != null) {
      wanted = [...shown, { position: state.next.position, token: null }];
      if (!(await refresh())) break;
      if (animated) await new Promise((resolve) => setTimeout(resolve, STEP_DELAY));
    }
    stop();
  }

  function stepQuery(fills) {
    const filled = fills.map(({ position, token }) => (token === null ? { position } : { position, token }));
    return { ...query, length: query.task && size, filled, order: advice || null, num_candidates: grid ? grid.symbols.length : undefined };
  }

  /** Requests the state with the wanted fills; a later call replaces an earlier one. True if this state is shown now. */
  async function refresh() {
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    const fills = wanted;
    node.setAttribute("aria-busy", "true");
    drawBar();
    try {
      const found = await request("api/step", stepQuery(fills), signal);
      showError("");
      shown = fills;
      state = found;
      size = state.tokens.length;
      history.set(shown.length, state);
      draw();
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      wanted = shown;
      finishing = false;
      showError(error.message);
      return false;
    } finally {
      if (controller.signal === signal) {
        node.removeAttribute("aria-busy");
        drawBar();
      }
    }
  }

  function draw() {
    const run = { tokens: state.tokens, steps: state.steps, logprobs: state.logprobs, given: state.given, grid };
    const guesses = state.candidates.map((candidates) => candidates?.[0]?.token ?? null);
    const { scores, position } = state.next;
    view.update({ ...run, label: "by hand", guesses, scores, next: position });
    view.show(view.last);
    if (!shown.some((fill) => fill.position === selected)) selected = shown.at(-1)?.position ?? null;
    drawWordPanel();
    drawCards();
    const masked = state.tokens.filter((token) => token === null).length;
    const newest = shown.length ? `Position ${shown.at(-1).position + 1} is ${state.tokens[shown.at(-1).position]}. ` : "";
    status.textContent = masked ? `${newest}${masked} masked.` : `${newest}Complete: ${state.text}`;
    const answer = { solved: state.solved, wrong: state.wrong, length: shown.length };
    const text = grid ? verdict(answer) : state.text;
    const finished = { ...run, ...answer, text, bleu: state.bleu, order: "by hand", advice: advice || null };
    onChange({ size, advice, fills: shown }, masked ? null : finished);
  }

  function drawBar() {
    undo.disabled = restart.disabled = !wanted.length;
    finish.textContent = finishing ? "Stop" : "Let the order finish";
    const masked = state ? state.tokens.filter((token) => token === null).length : 0;
    finish.disabled = !finishing && (!advice || wanted.length >= shown.length + masked);
  }

  /** The candidates of the selected position as buttons. After a link was opened they must be requested first. */
  async function drawWordPanel() {
    const index = shown.findIndex((fill) => fill.position === selected);
    wordForm.hidden = index < 0;
    if (index < 0) return;
    const position = selected;
    wordTitle.textContent = grid ? `Cell ${position + 1}` : `Word at position ${position + 1}`;
    wordInput.value = "";
    wordInput.hidden = write.hidden = Boolean(grid); // every symbol is a candidate
    if (!history.has(index)) {
      wordChoices.replaceChildren();
      const { signal } = controller;
      const before = await request("api/step", stepQuery(shown.slice(0, index)), signal).catch(() => null);
      if (signal.aborted || !before) return;
      history.set(index, before);
      if (position !== selected) return;
    }
    const candidates = history.get(index).candidates[position] ?? [];
    wordChoices.replaceChildren(
      ...candidates.map(({ token, p }, i) => {
        const current = token === state.tokens[position];
        const onclick = () => choose(position, i === 0 ? null : token);
        return el("button", { type: "button", class: "word-choice", "aria-pressed": String(current), onclick }, token, el("span", { class: "p" }, p < 0.005 ? "< 1 %" : `${Math.round(p * 100)} %`));
      }),
    );
  }

  function drawCards() {
    if (!all.open || !state) return;
    cards.replaceChildren();
    state.candidates.forEach((candidates, i) => {
      if (!candidates) return;
      const score = state.next.scores[i];
      const name = `Position ${i + 1}${score == null ? "" : ` · ${Math.round(score * 100)} %`}`;
      const head = el("button", { type: "button", class: i === state.next.position ? "next" : "", onclick: () => choose(i, null) }, name);
      cards.append(el("div", { class: "card" }, head, candidateList(candidates, (token) => choose(i, token === candidates[0].token ? null : token))));
    });
    if (!cards.children.length) cards.append(el("p", { class: "muted" }, "Nothing is masked."));
  }

  return {
    node,
    /** Starts with all masks; the same sentence stays as it was. */
    start(next, targetSize, nextGrid, orders, longest) {
      const isSame = query && !node.hidden && ["model", "task", "text"].every((name) => query[name] === next[name]);
      const { model, task, text, reference } = next;
      query = { model, task, text, reference: reference || null };
      grid = nextGrid;
      sizeLabel.hidden = targetSize === null;
      const known = [...new Set([...orders, ...next.orders])];
      if (!isSame || (advice && !known.includes(advice))) advice = next.orders[0] ?? NO_ADVICE;
      setOptions(adviser.querySelector("select"), [[NO_ADVICE, "nobody"], ...known.map((order) => [order, order])], advice);
      node.hidden = false;
      if (isSame) return refresh();
      finishing = false;
      size = targetSize;
      sizeInput.value = String(size ?? "");
      sizeInput.max = String(longest);
      wanted = shown = [];
      state = null;
      clearHistory();
      return refresh();
    },
    /** Shows the fills of a link. */
    restore(byHand) {
      size = byHand.size;
      sizeInput.value = String(size);
      advice = byHand.advice;
      const select = adviser.querySelector("select");
      select.value = advice;
      if (select.value !== advice) advice = select.value = NO_ADVICE;
      wanted = byHand.fills;
      clearHistory();
      return refresh();
    },
    set: (options) => view.set(options),
    pause() {
      stop();
      controller.abort();
    },
  };
}
