// The query form: a text, a model, a schedule, a revision and orders; for a translation also a reference, a direction and a
// length.

import { request } from "./api.js";
import { check, choice, el, setOptions } from "./dom.js";
import { examplesOf, isExample, maskedExamples } from "./examples.js";
import { namedChoice } from "./named.js";

// What the form says for each kind of model, and which orders are checked at the start, if the model has them.
const KINDS = {
  translation: { verb: "Translate", busy: "Translating …", text: "Sentence", placeholder: "A sentence to translate", empty: "Type a sentence first.", read: "translated", reference: "Reference", hint: "Reference translation (optional): shows BLEU", example: "Example", orders: ["learned", "max-prob", "left-to-right", "outer-in"] },
  infill: { verb: "Fill in", busy: "Filling in …", text: "Text", placeholder: "A text with [MASK] for every token to fill in", empty: "Type a text with [MASK] first.", read: "read", example: "Example", orders: ["learned", "margin", "left-to-right", "uniform"] },
  puzzle: { verb: "Solve", busy: "Solving …", text: "Puzzle", placeholder: "A puzzle: a character a cell, 0 where it is empty", empty: "Type a puzzle first.", read: "read", reference: "Solution", hint: "Solution (optional): shows which cells are wrong", example: "Another puzzle", orders: ["learned", "margin", "uniform", "left-to-right"], count: 3 },
};
const MASK = "[MASK]";
const STRIDED = "outer-in"; // the order with a stride option
const MAX_STRIDE = 20;
const NUMBER = "number";

/**
 * `server` is the response of /api/models; `onSubmit()` is called when the reader wants a result, `showError(line)` if an
 * example cannot be had. Returns `{node, query(), problem(), check(), restore(query), showExample(), busy(on), kind, grid,
 * orders, longest}`; a query is {model, task, text, reference, length, schedule, revision, orders}, undefined where
 * the kind of model has no such field.
 */
export function queryForm(server, onSubmit, showError) {
  const { models, characters, most_orders: mostOrders } = server;
  let info = models[0];
  let words = KINDS[info.kind];
  let task = Object.keys(info.orders)[0]; // such as a direction
  let checked = []; // names of orders
  let stride = 1;
  let usualSchedule = ""; // the one that the revision was published with
  const typedRevisions = new Map(); // those that were checked, with their usual schedules
  let exampleNumber = 0;
  let exampleReference = "";

  const text = el("textarea", { id: "text", rows: "1", spellcheck: "false", autocomplete: "off", oninput: onType });
  const reference = el("input", { id: "reference", type: "text", class: "reference-input", spellcheck: "false", autocomplete: "off" });
  const counter = el("output", { class: "muted counter", for: "text" });
  const [textLabel, referenceLabel] = [el("label", { class: "visually-hidden", for: "text" }), el("label", { class: "visually-hidden", for: "reference" })];
  const example = el("button", { type: "button", class: "plain small", onclick: nextExample });
  const mask = el("button", { type: "button", class: "plain small", title: `Insert ${MASK}`, onclick: insertMask }, MASK);
  const model = choice("Model", models.map(({ name }) => [name, name]), info.name, (name) => chooseModel(name));
  const directionChoice = choice("Direction", [], "", (value) => setModel(info.name, value));
  const length = choice("Length", [], "", () => (draw(), size.hidden || size.focus()));
  const size = el("input", { type: "number", min: "1", step: "1", value: "16", "aria-label": "Number of subwords", class: "size" });
  const schedule = namedChoice("Schedule", "linear:6", async (name) => (await request("api/check", { model: info.name, schedule: name })).schedule);
  const revision = namedChoice("Revision", "refine:3", checkRevision, followRevision);
  const submit = el("button", { type: "submit", class: "submit", title: "Ctrl + Enter" });
  const box = el("div", { class: "text-box" }, textLabel, text, referenceLabel, reference, el("div", { class: "text-foot" }, el("span", {}, example, mask), counter));
  const pair = el("span", { class: "pair" }, length, size);
  const boxes = el("div", { class: "boxes" });
  const hint = el("span", { class: "muted hint" });
  const orders = el("fieldset", { class: "order-picker" }, el("legend", {}, "Orders"), boxes, hint);
  const node = el(
    "form",
    { class: "query-form", novalidate: true, autocomplete: "off", "aria-label": "Query", onsubmit: (event) => (event.preventDefault(), onSubmit()) },
    box,
    el("div", { class: "settings" }, model, directionChoice, pair, schedule.node, revision.node, submit),
    orders,
  );
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    onSubmit();
  });
  const selectOf = (label) => label.querySelector("select");
  setModel(info.name, task);
  updateCounter();

  /** The reader chose a model. One of another kind, or for other puzzles, starts with an example of its own. */
  async function chooseModel(name) {
    const before = info;
    setModel(name, task);
    const fits = info.kind === before.kind && info.grid?.columns === before.grid?.columns;
    if (!fits && (await showExample(0))) onSubmit();
  }

  /** Switches the model or the task; orders that the new one has too stay checked if it is of the same kind. */
  function setModel(name, wantedTask) {
    const [oldTask, oldKind] = [task, info.kind];
    info = models.find((other) => other.name === name) ?? info;
    if (info.kind !== oldKind) checked = [];
    setKind();
    const tasks = Object.keys(info.orders);
    task = tasks.includes(wantedTask) ? wantedTask : tasks[0];
    const available = availableOrders();
    const learned = available.filter((order) => order.startsWith("learned"));
    const hadLearned = checked.some((order) => order.startsWith("learned"));
    checked = checked.filter((order) => available.includes(order.split(":")[0]) || available.includes(order));
    if (hadLearned && learned.length && !checked.some((order) => learned.includes(order))) checked.unshift(learned[0]);
    if (!checked.length) checked = defaultOrders(available, learned);
    setOptions(selectOf(model), models.map((other) => [other.name, other.name]), info.name);
    setOptions(selectOf(directionChoice), tasks.map((other) => [other, other.replace("-", " → ")]), task);
    setOptions(selectOf(length), [...info.lengths.map((rule) => [rule, rule]), [NUMBER, "a number"]], selectOf(length).value);
    size.max = String(info.longest);
    schedule.offer(info.schedules);
    revision.offer(info.revisions);
    usualSchedule = usualOf(revision.value);
    draw();
    if (info.kind === oldKind && task !== oldTask && isExample(text.value)) showExample();
  }

  /** Shows what this kind of model has, by the names that it has there. */
  function setKind() {
    words = KINDS[info.kind];
    box.classList.toggle("puzzle", info.kind === "puzzle");
    textLabel.textContent = words.text;
    text.placeholder = words.placeholder;
    referenceLabel.textContent = words.reference ?? "";
    reference.placeholder = words.hint ?? "";
    reference.hidden = referenceLabel.hidden = !words.reference;
    example.textContent = words.example;
    mask.hidden = info.kind !== "infill";
    directionChoice.hidden = pair.hidden = info.kind !== "translation";
    submit.textContent = words.verb;
  }

  async function checkRevision(name) {
    const found = await request("api/check", { model: info.name, revision: name });
    typedRevisions.set(name, found.usual_schedule);
    return found.revision;
  }

  function usualOf(name) {
    return info.revisions.find((one) => one.name === name)?.usual_schedule ?? typedRevisions.get(name) ?? "";
  }

  /** Another revision brings the schedule that it was published with, unless the reader chose one of their own. */
  function followRevision() {
    const [before, usual] = [usualSchedule, usualOf(revision.value)];
    usualSchedule = usual;
    if (!usual || usual === schedule.value || schedule.value !== before) return;
    schedule.value = usual;
    schedule.say(revision.value === info.revisions[0].name ? "" : `as ${revision.value} was published`);
  }

  function defaultOrders(available, learned) {
    const wanted = [...(available.includes("learned") ? [] : learned.slice(0, 1)), ...words.orders];
    const found = wanted.filter((order) => available.includes(order)).slice(0, words.count);
    return found.length ? found : available.slice(0, 1);
  }

  function availableOrders() {
    return info.orders[task];
  }

  /** The name with its option. */
  function fullName(order) {
    return order === STRIDED && stride > 1 ? `${order}:stride=${stride}` : order;
  }

  function draw() {
    size.hidden = selectOf(length).value !== NUMBER;
    const offered = availableOrders().map((order) => [order, fullName(order)]);
    const names = offered.map(([, name]) => name);
    const linked = checked.filter((name) => !names.includes(name)).map((name) => [name, name]); // with options, from a link
    boxes.replaceChildren(...[...offered, ...linked].flatMap(([order, name]) => (order === STRIDED ? [orderBox(order, name), strideInput()] : [orderBox(order, name)])));
    limitOrders();
  }

  function orderBox(order, name) {
    return check(order, checked.includes(name), (on) => {
      const current = fullName(order);
      checked = on ? [...checked, current] : checked.filter((other) => other !== current);
      limitOrders();
    });
  }

  function strideInput() {
    const input = el("input", { type: "number", class: "size", min: "1", max: String(MAX_STRIDE), step: "1", value: String(stride), "aria-label": `Stride of ${STRIDED}` });
    input.addEventListener("change", () => {
      const before = fullName(STRIDED);
      stride = Math.min(MAX_STRIDE, Math.max(1, Math.round(Number(input.value)) || 1));
      input.value = String(stride);
      const after = fullName(STRIDED);
      checked = [...new Set(checked.map((name) => (name === before ? after : name)))];
    });
    return el("label", { class: "stride" }, el("span", {}, "stride"), input);
  }

  /** Disables the other boxes once as many orders are checked as the server takes. */
  function limitOrders() {
    const full = checked.length >= mostOrders;
    for (const box of boxes.querySelectorAll("input[type=checkbox]")) box.disabled = full && !box.checked;
    hint.textContent = full ? `${mostOrders} at most` : "";
  }

  function onType() {
    if (reference.value === exampleReference) reference.value = ""; // it belongs to the example
    updateCounter();
  }

  function updateCounter() {
    const count = [...text.value].length;
    counter.textContent = count ? `${count} / ${characters}` : "";
    counter.classList.toggle("over", count > characters);
    fitHeight();
  }

  function fitHeight() {
    text.style.height = "auto";
    text.style.height = `${Math.min(220, text.scrollHeight + 2)}px`;
  }

  // The lines break differently once the form is in the page, and when a phone is turned.
  let width = 0;
  new ResizeObserver(() => {
    if (text.clientWidth === width) return;
    width = text.clientWidth;
    fitHeight();
  }).observe(text);

  function insertMask() {
    text.setRangeText(MASK, text.selectionStart, text.selectionEnd, "end");
    text.focus();
    onType();
  }

  /** Another example; a puzzle is solved at once. */
  async function nextExample() {
    if (!(await showExample(exampleNumber + 1))) return;
    if (info.kind === "puzzle") onSubmit();
    else text.focus();
  }

  /** Puts an example into the form; false if there is none. */
  async function showExample(number = exampleNumber) {
    if (info.kind === "puzzle") return showPuzzle();
    const examples = info.kind === "infill" ? maskedExamples() : examplesOf(task);
    if (!examples.length) return false;
    exampleNumber = number % examples.length;
    setTexts(examples[exampleNumber]);
    return true;
  }

  /** A puzzle that nobody has seen. */
  async function showPuzzle() {
    const seed = Number(crypto.getRandomValues(new BigUint64Array(1))[0] >> 11n);
    const { name } = info;
    try {
      const puzzle = await request("api/puzzle", { model: name, seed });
      if (info.name !== name) return false;
      setTexts(puzzle);
      return true;
    } catch (error) {
      showError(error.message);
      return false;
    }
  }

  function setTexts(example) {
    text.value = example.text;
    reference.value = exampleReference = example.reference;
    updateCounter();
  }

  return {
    node,
    showExample,
    query() {
      const rule = selectOf(length).value;
      const translates = info.kind === "translation";
      return {
        model: info.name,
        task: translates ? task : undefined,
        text: text.value.replace(/\s+/g, " ").trim(),
        reference: words.reference && reference.value.replace(/\s+/g, " ").trim(),
        length: translates ? (rule === NUMBER ? Math.round(Number(size.value)) || 0 : rule) : undefined,
        schedule: schedule.value,
        revision: revision.value,
        orders: [...checked],
      };
    },
    /** Why the query cannot be sent, or "". The server checks everything else. */
    problem() {
      const { length: count } = [...text.value.trim()];
      if (!count) return words.empty;
      if (count > characters) return `The text has ${count} characters; at most ${characters} are ${words.read}.`;
      if ([...reference.value.trim()].length > characters) return `The reference has more than ${characters} characters.`;
      return checked.length ? "" : "Choose at least one order.";
    },
    /** Whether the server takes the names that were typed; what is wrong stands beside them. */
    async check() {
      const found = await Promise.all([schedule.check(), revision.check()]);
      return found.every(Boolean);
    },
    /** Takes the query of a link, as far as this server knows its names; returns a line about what it does not know, or "". */
    restore(query) {
      const linkedStride = query.orders.map((order) => /^outer-in:stride=([1-9]\d?)$/.exec(order)).find(Boolean);
      stride = linkedStride && Number(linkedStride[1]) <= MAX_STRIDE && !query.orders.includes(STRIDED) ? Number(linkedStride[1]) : 1;
      text.value = "";
      setModel(query.model, query.task);
      checked = query.orders;
      setModel(info.name, task); // unknown orders are dropped
      text.value = query.text;
      reference.value = query.reference;
      exampleReference = isExample(query.text) ? query.reference : "";
      const isNumber = /^\d+$/.test(query.length);
      if (isNumber) size.value = query.length;
      if (isNumber || info.lengths.includes(query.length)) selectOf(length).value = isNumber ? NUMBER : query.length;
      schedule.value = query.schedule;
      revision.value = query.revision;
      usualSchedule = usualOf(query.revision);
      draw();
      updateCounter();
      if (info.name !== query.model) return `This server has no model ${query.model}; ${info.name} is used.`;
      if (info.kind === "translation" && task !== query.task) return `${info.name} does not translate ${query.task}; ${task} is used.`;
      return "";
    },
    busy(on) {
      submit.textContent = on ? words.busy : words.verb;
      submit.classList.toggle("waiting", on);
      node.setAttribute("aria-busy", String(on));
    },
    /** "translation", "infill" or "puzzle". */
    get kind() {
      return info.kind;
    },
    /** {columns, rows, box, symbols} of a puzzle; null for others. */
    get grid() {
      return info.grid;
    },
    /** The orders of the chosen task. */
    get orders() {
      return availableOrders();
    },
    /** The largest target in subwords. */
    get longest() {
      return info.longest;
    },
  };
}
