// The fill view: one sentence in one order, at any step. The report shows finished runs with it, the explorer runs that
// are still being written.
//
//   const view = fillView(element, run, options);
//   view.show(step);         // the sentence after this step; 0 is all masks
//   view.update(run);        // another run, or the same one further on; the options stay
//   view.set({arcs: false}); // other options; the run stays
//   view.weigh(scores, next); // the order's distribution at the step shown, drawn in what is masked; until the step changes
//   view.last                // number of the last step
//   view.step                // the step shown
//   view.destroy();
//
// run: {
//   tokens:   [string | null],   subwords, "@@" at the end where a word goes on; null where nothing is filled
//   steps:    [int | null],      step from 1 at which each position was filled; several may share one
//   logprobs: [float | null]?,   log-probability of each token when it was filled
//   order:    string?,           heading
//   label:    string?,           name for those who do not see it, where there is no heading
//   note:     string?,           small text beside the heading, such as a label
//   figures:  [[name, text]]?,   at the right end of the heading
//   scores:   [float | null]?,   the order's distribution over positions still masked; drawn as bars in the blanks
//   next:     int | null?        the position the order would fill next; marked
//   guesses:  [string | null]?,  what the model would write at masked positions; shown pale
//   text:     string?            the sentence as a reader expects it; shown after the last step
// }
// options: {
//   onStep(step, view)?,         called when the user goes to a step by clicking a token
//   onPick(position, view)?,     called when the user picks a blank; without it blanks cannot be picked
//   candidates(position, view)?, [{token, p}] | null or a promise of it: what the model would write there;
//                                {candidates, rows: [[name, text]]} adds lines to what is told of the position
//   arcs: bool?, brackets: bool?, colour: "step" | "probability"?    what is drawn; all of it by default
// }
//
// Keys inside the sentence: arrows, Home and End move between tokens, Enter or space goes to a token's step or picks a blank.

import { arcs } from "./arcs.js";
import { bracketed } from "./brackets.js";
import { ink, place, scale } from "./colour.js";
import { el, number, percent } from "./dom.js";

export function fillView(element, firstRun, firstOptions = {}) {
  let run = firstRun;
  let options = { arcs: true, brackets: true, colour: "step", ...firstOptions };
  let last = 0;
  let step = 0;
  let buttons = [];
  let byStep = [];
  let jumps = null;
  let asked = 0;

  const heading = el("header", { class: "fill-head" });
  const line = el("div", { class: "fill-line", role: "group", onkeydown: move, onclick: clicked });
  const picture = el("div", { class: "fill-arcs" });
  const notation = el("code", { class: "fill-brackets", tabindex: "0" });
  const text = el("p", { class: "fill-text" });
  const tip = el("div", { class: "tip", role: "tooltip", hidden: true });
  const root = el("section", { class: "fill" }, heading, line, picture, notation, text, tip);
  line.addEventListener("pointerover", (event) => event.pointerType !== "touch" && explain(event.target.closest("button")));
  line.addEventListener("pointerleave", () => explain(null));
  line.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && explain(event.target.closest("button")));
  line.addEventListener("focusout", () => explain(null));
  const watcher = new ResizeObserver(() => drawArcs());
  element.append(root);
  watcher.observe(picture);
  build();
  show(last);

  function build() {
    last = run.steps.reduce((most, at) => Math.max(most, at ?? 0), 0);
    const name = run.label ?? run.order ?? "sentence";
    root.setAttribute("aria-label", name);
    line.setAttribute("aria-label", `${name}: ${run.tokens.length} positions`);
    buildHeading();
    byStep = Array.from({ length: last + 1 }, () => []);
    buttons = run.tokens.map(slot);
    line.replaceChildren(...words(run.tokens, buttons));
    if (buttons.length) buttons[0].tabIndex = 0;
    buttons.forEach((button, i) => button.classList.toggle("next", run.next === i));
    jumps = arcs(run.steps, last);
    picture.replaceChildren(jumps.node);
    picture.hidden = !options.arcs;
    notation.hidden = !options.brackets;
    text.hidden = run.text == null;
    text.textContent = run.text ?? "";
    drawArcs();
  }

  function buildHeading() {
    heading.replaceChildren();
    heading.hidden = !run.order;
    heading.append(el("h3", {}, run.order ?? ""));
    if (run.note) heading.append(el("span", { class: "note" }, run.note));
    const figures = el("dl", {});
    for (const [name, text] of run.figures ?? []) figures.append(el("div", {}, el("dt", {}, name), el("dd", {}, text)));
    heading.append(figures);
  }

  function slot(token, i) {
    const at = run.steps[i];
    const button = el("button", { type: "button", class: "token", tabindex: "-1" });
    button.dataset.i = i;
    button.setAttribute("aria-label", `position ${i + 1}, masked`);
    const score = run.scores?.[i];
    if (at === null || at === undefined) {
      button.classList.add("blank");
      const guess = run.guesses?.[i]?.replace(/@@$/, "");
      button.append(el("span", { class: guess ? "word guess" : "word" }, guess ?? "\u00a0"), el("span", { class: "step" }, score == null ? "\u00a0" : percent(score)));
      if (score != null) button.style.setProperty("--score", Math.min(1, Math.max(0, score)).toFixed(3));
      if (!options.onPick) button.setAttribute("aria-disabled", "true");
      return button;
    }
    byStep[at].push(button);
    const t = tone(i);
    button.style.setProperty("--tone", scale(t));
    button.style.setProperty("--ink-on", ink(t));
    button.append(el("span", { class: "word" }, token.replace(/@@$/, "")), el("span", { class: "step" }, String(at)));
    return button;
  }

  function tone(i) {
    if (options.colour === "probability" && run.logprobs?.[i] != null) return Math.exp(run.logprobs[i]);
    return place(run.steps[i], last);
  }

  function drawArcs() {
    if (options.arcs && picture.clientWidth) jumps.draw(picture.clientWidth);
  }

  /** Goes to a step; only what changes between here and there is touched. */
  function show(to) {
    const target = Math.min(last, Math.max(0, Math.round(to)));
    for (const button of byStep[step]) button.classList.remove("now");
    for (let s = step + 1; s <= target; s += 1) byStep[s].forEach((button) => filled(button, s, true));
    for (let s = target + 1; s <= step; s += 1) byStep[s].forEach((button) => filled(button, s, false));
    step = target;
    for (const button of byStep[step]) button.classList.add("now");
    text.classList.toggle("done", step === last);
    weigh(null);
    if (options.arcs) jumps.show(step);
    if (options.brackets) notation.textContent = bracketed(run.tokens, run.steps, step);
  }

  function weigh(scores, next = null) {
    buttons.forEach((button, i) => {
      if (run.steps[i] === null || run.steps[i] === undefined) return;
      const score = button.classList.contains("on") ? null : scores?.[i];
      button.classList.toggle("weighed", score != null);
      button.classList.toggle("next", score != null && next === i);
      if (score == null) return;
      button.style.setProperty("--score", Math.min(1, Math.max(0, score)).toFixed(3));
      button.dataset.score = percent(score).replace(" ", "");
    });
  }

  function filled(button, at, on) {
    button.classList.toggle("on", on);
    const i = Number(button.dataset.i);
    button.setAttribute("aria-label", on ? `${run.tokens[i]}, position ${i + 1}, step ${at}` : `position ${i + 1}, masked`);
  }

  function clicked(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const i = Number(button.dataset.i);
    const at = run.steps[i];
    if (at === null || at === undefined) options.onPick?.(i, view);
    else {
      show(at);
      options.onStep?.(at, view);
      if (event.pointerType === "touch") explain(button); // fingers do not hover
    }
  }

  function move(event) {
    const i = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Escape") explain(null);
    if (i < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const target = buttons[Math.min(buttons.length - 1, Math.max(0, to))];
    buttons[i].tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  /** A card over a token: what it is, when it came and how sure the model was, or what it could become. */
  async function explain(button) {
    const turn = ++asked;
    if (!button) {
      tip.hidden = true;
      return;
    }
    const i = Number(button.dataset.i);
    const open = !button.classList.contains("on");
    const rows = el("dl", {});
    const row = (name, text) => rows.append(el("div", {}, el("dt", {}, name), el("dd", {}, text)));
    if (!open) row("token", run.tokens[i]);
    row("position", `${i + 1} of ${run.tokens.length}`);
    if (!open) row("step", `${run.steps[i]} of ${last}`);
    if (!open && run.logprobs?.[i] != null) row("probability", `${percent(Math.exp(run.logprobs[i]))}  (log ${number(run.logprobs[i])})`);
    if (open && run.scores?.[i] != null) row("chosen next", percent(run.scores[i], 1));
    tip.replaceChildren(rows);
    lay(button);
    const told = await options.candidates?.(i, view);
    if (turn !== asked || !told) return;
    const offered = Array.isArray(told) ? told : told.candidates;
    for (const [name, what] of told.rows ?? []) row(name, what);
    if (offered?.length) tip.append(candidateList(offered));
    lay(button);
  }

  function lay(button) {
    tip.hidden = false;
    const [frame, box] = [root.getBoundingClientRect(), button.getBoundingClientRect()];
    const middle = box.left + box.width / 2 - frame.left;
    const left = Math.max(4, Math.min(frame.width - tip.offsetWidth - 4, middle - tip.offsetWidth / 2));
    tip.style.left = `${left}px`;
    tip.style.top = `${box.bottom - frame.top + 6}px`;
  }

  const view = {
    get step() {
      return step;
    },
    get last() {
      return last;
    },
    element: root,
    show,
    weigh,
    update(next) {
      explain(null);
      const atEnd = step === last;
      const focused = buttons.indexOf(document.activeElement);
      const before = step;
      run = next;
      step = 0;
      build();
      show(atEnd ? last : before);
      if (focused >= 0) buttons[Math.min(focused, buttons.length - 1)]?.focus();
    },
    set(changes) {
      options = { ...options, ...changes };
      const before = step;
      step = 0;
      build();
      show(before);
    },
    destroy() {
      watcher.disconnect();
      root.remove();
    },
  };
  return view;
}

/** Buttons gathered into words: pieces of one word stand without a gap. */
function words(tokens, buttons) {
  const made = [];
  let word = null;
  tokens.forEach((token, i) => {
    const goesOn = token !== null && token !== undefined && token.endsWith("@@") && i + 1 < tokens.length;
    if (!word) made.push((word = el("span", { class: "joined" })));
    word.append(buttons[i]);
    if (!goesOn) word = null;
    else buttons[i].classList.add("goes-on");
  });
  return made;
}

/** Tokens with their probabilities, as bars. */
export function candidateList(offered) {
  const list = el("ol", { class: "candidates" });
  for (const { token, p } of offered) {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${Math.round(Math.min(1, Math.max(0, p)) * 100)}%`;
    list.append(el("li", {}, el("span", { class: "word" }, token), el("span", { class: "track" }, bar), el("span", { class: "p" }, p < 0.005 ? "< 1 %" : percent(p))));
  }
  return list;
}
