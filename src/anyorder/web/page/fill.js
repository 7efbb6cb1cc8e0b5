// The fill view: one sentence in one order, at any step. The report shows finished runs with it; the explorer also shows
// runs that are still being filled.
//
//   const view = fillView(element, run, options);
//   view.show(step);                // the sentence after this step; 0 is all masks
//   view.update(run);               // another run, or more of the same one; the options stay
//   view.set({arcs: false});        // other options; the run stays
//   view.showScores(scores, next);  // the order's distribution over masked positions; cleared when the step changes
//   view.last                       // the last step
//   view.step                       // the step that is shown
//   view.destroy();
//
// run: {
//   tokens:   [string | null],   subwords as their vocabulary marks them (see subwords.js); null where masked
//   steps:    [int | null],      the step, from 1, at which each position was filled; null where masked, and where the
//                                token was given with the canvas
//   logprobs: [float | null]?,   the log-probability of each token when it was filled
//   writes:   [{position, step, token, logprob}]?,   every write, where positions were written more than once; tokens, steps
//                                and logprobs are those of the last ones
//   given:    [bool]?,           true where the user chose the token; marked
//   order:    string?,           heading
//   label:    string?,           accessible name where there is no heading
//   note:     string?,           small text beside the heading, such as a label
//   metrics:  [[name, text]]?,   at the end of the heading
//   scores:   [float | null]?,   the order's distribution over masked positions; drawn as bars in the blanks
//   next:     int | null?        the position that the order would fill next; marked
//   guesses:  [string | null]?,  the model's best tokens at masked positions; shown pale
//   text:     string?,           the sentence as plain text; shown after the last step
//   grid:     {columns, box}?,   draws a grid instead of a line; box: cells along the side of a box, 0 if there are none
//   solved:   bool?,             whether the answer is right; shown after the last step
//   wrong:    [int]?             positions that are not right; marked after the last step
// }
// options: {
//   onStep(step, view)?,         called when the user clicks a token to go to its step
//   onPick(position, view)?,     called when the user picks a blank; without it blanks cannot be picked
//   onSelect(position, view)?,   called when the user clicks a filled token, instead of going to its step
//   candidates(position, view)?, [{token, p}] | null, or a promise of it: the model's predictions for the tooltip;
//                                {candidates, rows: [[name, text]]} adds rows to the tooltip
//   arcs: bool?, brackets: bool?, color: "step" | "probability"?    what is drawn; everything by default
// }
//
// Keys inside the sentence: arrows, Home and End move between tokens; Enter or space acts like a click. In a grid ↑ and ↓
// move between rows.

import { arcs } from "./arcs.js";
import { bracketed } from "./brackets.js";
import { ink, scale, stepTone } from "./color.js";
import { el, formatNumber, percent } from "./dom.js";
import { spelled, wordsOf } from "./subwords.js";
import { latest, path, stateAt, writesOf } from "./writes.js";

const SHOWN_WRITES = 5; // how many earlier writes a tooltip lists

export function fillView(element, firstRun, firstOptions = {}) {
  let run = firstRun;
  let options = { arcs: true, brackets: true, color: "step", ...firstOptions };
  let last = 0;
  let step = 0;
  let buttons = [];
  let writes = []; // by position, see writes.js
  let byStep = []; // the buttons that each step writes
  let jumps = null;
  let tooltipNumber = 0; // only the latest tooltip may draw

  const heading = el("header", { class: "fill-head" });
  const line = el("div", { class: "fill-line", role: "group", onkeydown: moveFocus, onclick: onClick });
  const picture = el("div", { class: "fill-arcs" });
  const notation = el("code", { class: "fill-brackets", tabindex: "0" });
  const text = el("p", { class: "fill-text" });
  const tip = el("div", { class: "tip", role: "tooltip", hidden: true });
  const root = el("section", { class: "fill" }, heading, line, picture, notation, text, tip);
  line.addEventListener("pointerover", (event) => event.pointerType !== "touch" && showTooltip(event.target.closest("button")));
  line.addEventListener("pointerleave", () => showTooltip(null));
  line.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && showTooltip(event.target.closest("button")));
  line.addEventListener("focusout", () => showTooltip(null));
  const resizeObserver = new ResizeObserver(() => drawArcs());
  element.append(root);
  resizeObserver.observe(picture);
  build();
  show(last);

  function build() {
    last = run.steps.reduce((most, at) => Math.max(most, at ?? 0), 0);
    const name = run.label ?? run.order ?? "sentence";
    root.setAttribute("aria-label", name);
    line.setAttribute("aria-label", `${name}: ${run.tokens.length} positions`);
    buildHeading();
    writes = writesOf(run);
    byStep = Array.from({ length: last + 1 }, () => []);
    buttons = run.tokens.map(tokenButton);
    layOut();
    if (buttons.length) buttons[0].tabIndex = 0;
    buttons.forEach((button, i) => button.classList.toggle("next", run.next === i));
    jumps = arcs(path(writes), run.tokens.length, last);
    picture.replaceChildren(jumps.node);
    picture.hidden = !showsArcs();
    notation.hidden = !options.brackets || Boolean(run.grid);
    text.hidden = run.text == null;
    text.textContent = run.text ?? "";
    root.classList.toggle("right", run.solved === true);
    root.classList.toggle("not-right", run.solved === false);
    for (const i of run.wrong ?? []) buttons[i]?.classList.add("wrong");
    drawArcs();
  }

  /** Words in a line, or cells in a grid. */
  function layOut() {
    const { grid } = run;
    line.classList.toggle("cells", Boolean(grid));
    if (!grid) {
      line.replaceChildren(...wordsOf(run.tokens).map((word) => joined(word.map((i) => buttons[i]))));
      return;
    }
    line.style.setProperty("--columns", grid.columns);
    buttons.forEach((button, i) => {
      const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
      button.classList.toggle("box-left", grid.box > 0 && column > 0 && column % grid.box === 0);
      button.classList.toggle("box-top", grid.box > 0 && row > 0 && row % grid.box === 0);
    });
    line.replaceChildren(...buttons);
  }

  function showsArcs() {
    return options.arcs && !run.grid;
  }

  /** Whether a position was given with the canvas: it has a token and was never filled. */
  function isClue(i) {
    return (run.steps[i] ?? null) === null && (run.tokens[i] ?? null) !== null;
  }

  function buildHeading() {
    heading.replaceChildren();
    heading.hidden = !run.order;
    heading.append(el("h3", {}, run.order ?? ""));
    if (run.note) heading.append(el("span", { class: "note" }, run.note));
    const metrics = el("dl", {});
    for (const [name, value] of run.metrics ?? []) metrics.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    heading.append(metrics);
  }

  function tokenButton(token, i) {
    const at = run.steps[i];
    const button = el("button", { type: "button", class: "token", tabindex: "-1" });
    button.dataset.i = i;
    button.setAttribute("aria-label", `position ${i + 1}, masked`);
    if (isClue(i)) {
      button.classList.add("clue");
      button.setAttribute("aria-label", `${token}, position ${i + 1}, given`);
      button.setAttribute("aria-disabled", "true");
      button.append(el("span", { class: "word" }, spelled(token)), el("span", { class: "step" }, "\u00a0"));
      return button;
    }
    const score = run.scores?.[i];
    if (at === null || at === undefined) {
      button.classList.add("blank");
      const guess = run.guesses?.[i];
      button.append(el("span", { class: guess ? "word guess" : "word" }, guess ? spelled(guess) : "\u00a0"), el("span", { class: "step" }, score == null ? "\u00a0" : percent(score)));
      if (score != null) button.style.setProperty("--score", Math.min(1, Math.max(0, score)).toFixed(3));
      if (!options.onPick) button.setAttribute("aria-disabled", "true");
      return button;
    }
    for (const write of writes[i]) byStep[write.step].push(button);
    button.classList.toggle("given", Boolean(run.given?.[i]));
    const word = el("span", { class: "word" });
    if (writes[i].length > 1) word.dataset.widest = writes[i].map((write) => spelled(write.token)).reduce((a, b) => (b.length > a.length ? b : a)); // keeps its room
    button.append(word, el("span", { class: "step" }));
    drawWrite(button, i, 0);
    return button;
  }

  /** Shows the write of that number in the button of its position. */
  function drawWrite(button, i, number) {
    const write = writes[i][number];
    const t = tone(write);
    button.style.setProperty("--tone", scale(t));
    button.style.setProperty("--ink-on", ink(t));
    button.firstChild.textContent = spelled(write.token);
    button.lastChild.textContent = String(write.step);
    button.classList.toggle("again", number > 0);
  }

  function tone({ step: at, logprob }) {
    return options.color === "probability" && logprob !== null ? Math.exp(logprob) : stepTone(at, last);
  }

  function drawArcs() {
    if (showsArcs() && picture.clientWidth) jumps.draw(picture.clientWidth);
  }

  /** Goes to a step and updates only the tokens that change. */
  function show(to) {
    const target = Math.min(last, Math.max(0, Math.round(to)));
    for (const button of byStep[step]) button.classList.remove("now");
    const changed = new Set(byStep.slice(Math.min(step, target) + 1, Math.max(step, target) + 1).flat());
    step = target;
    changed.forEach(drawState);
    for (const button of byStep[step]) button.classList.add("now");
    text.classList.toggle("done", step === last);
    root.classList.toggle("done", step === last && last > 0);
    for (const i of run.wrong ?? []) if (buttons[i]?.classList.contains("on")) label(i);
    showScores(null);
    if (showsArcs()) jumps.show(step);
    if (!options.brackets) return;
    const now = stateAt(run, writes, step);
    notation.textContent = bracketed(now.tokens, now.steps, step);
  }

  function showScores(scores, next = null) {
    buttons.forEach((button, i) => {
      if (run.steps[i] === null || run.steps[i] === undefined) return;
      const score = button.classList.contains("on") ? null : scores?.[i];
      button.classList.toggle("scored", score != null);
      button.classList.toggle("next", score != null && next === i);
      if (score == null) return;
      button.style.setProperty("--score", Math.min(1, Math.max(0, score)).toFixed(3));
      button.dataset.score = percent(score).replace(" ", "");
    });
  }

  /** Shows what stands in a position after the current step. */
  function drawState(button) {
    const i = Number(button.dataset.i);
    const number = latest(writes[i], step);
    button.classList.toggle("on", number >= 0);
    if (writes[i].length > 1) drawWrite(button, i, Math.max(0, number));
    if (number >= 0) label(i);
    else button.setAttribute("aria-label", `position ${i + 1}, masked`);
  }

  /** The accessible name of a filled position. */
  function label(i) {
    const chosen = run.given?.[i] ? ", chosen by you" : "";
    const wrong = step === last && run.wrong?.includes(i) ? ", wrong" : "";
    const number = latest(writes[i], step);
    const { token, step: at } = writes[i][number];
    const again = number > 0 ? `, written again, was ${writes[i][number - 1].token}` : "";
    buttons[i].setAttribute("aria-label", `${token}, position ${i + 1}, step ${at}${again}${chosen}${wrong}`);
  }

  function onClick(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const i = Number(button.dataset.i);
    if (isClue(i)) return;
    if (!writes[i].length) {
      options.onPick?.(i, view);
      return;
    }
    if (options.onSelect) options.onSelect(i, view);
    else {
      const { step: at } = writes[i][Math.max(0, latest(writes[i], step))];
      show(at);
      options.onStep?.(at, view);
    }
    if (event.pointerType === "touch") showTooltip(button); // a touch screen has no hover
  }

  function moveFocus(event) {
    const i = buttons.indexOf(document.activeElement);
    const rows = run.grid && { ArrowUp: i - run.grid.columns, ArrowDown: i + run.grid.columns };
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: buttons.length - 1, ...rows }[event.key];
    if (event.key === "Escape") showTooltip(null);
    if (i < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const target = buttons[Math.min(buttons.length - 1, Math.max(0, to))];
    buttons[i].tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  /** The tooltip of a token: its position, step and probability, or what the model could write there. */
  async function showTooltip(button) {
    const number = ++tooltipNumber;
    if (!button) {
      tip.hidden = true;
      return;
    }
    const i = Number(button.dataset.i);
    const clue = isClue(i);
    const masked = !clue && !button.classList.contains("on");
    const newest = latest(writes[i], step);
    const write = masked ? null : writes[i][newest];
    const rows = el("dl", {});
    const addRow = (name, value) => rows.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    if (!masked) addRow("token", write?.token ?? run.tokens[i]);
    addRow("position", `${i + 1} of ${run.tokens.length}`);
    if (clue) addRow("given", "yes");
    else if (!masked) addRow("step", `${write.step} of ${last}`);
    if (write && write.logprob !== null) addRow("probability", `${percent(Math.exp(write.logprob))}  (log ${formatNumber(write.logprob)})`);
    for (const earlier of masked ? [] : writes[i].slice(Math.max(0, newest - SHOWN_WRITES), newest)) addRow(`before, step ${earlier.step}`, earlier.token);
    if (!masked && !clue && run.given?.[i]) addRow("chosen by", "you");
    if (masked && run.scores?.[i] != null) addRow("chosen next", percent(run.scores[i], 1));
    tip.replaceChildren(rows);
    placeTooltip(button);
    if (clue) return;
    const answer = await options.candidates?.(i, view);
    if (number !== tooltipNumber || !answer) return;
    const candidates = Array.isArray(answer) ? answer : answer.candidates;
    for (const [name, value] of answer.rows ?? []) addRow(name, value);
    if (candidates?.length) tip.append(candidateList(candidates));
    placeTooltip(button);
  }

  function placeTooltip(button) {
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
    showScores,
    update(next) {
      showTooltip(null);
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
      resizeObserver.disconnect();
      root.remove();
    },
  };
  return view;
}

/** The buttons of one word, whose subwords have no gap between them. */
function joined(buttons) {
  for (const button of buttons.slice(0, -1)) button.classList.add("continues");
  return el("span", { class: "joined" }, ...buttons);
}

/** Tokens with their probabilities as bars. With `onChoose(token)`, each token is a button. */
export function candidateList(candidates, onChoose = null) {
  const list = el("ol", { class: "candidates" });
  for (const { token, p } of candidates) {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${Math.round(Math.min(1, Math.max(0, p)) * 100)}%`;
    const word = onChoose ? el("button", { type: "button", class: "word", title: `Write ${token} here`, onclick: () => onChoose(token) }, token) : el("span", { class: "word" }, token);
    list.append(el("li", {}, word, el("span", { class: "track" }, bar), el("span", { class: "p" }, p < 0.005 ? "< 1 %" : percent(p))));
  }
  return list;
}
