// The query form: a sentence, its reference, a model, a direction, a length, a schedule and orders.

import { check, choice, el, setOptions } from "./dom.js";
import { examplesOf, isExample } from "./examples.js";

const DEFAULT_ORDERS = ["learned", "max-prob", "left-to-right", "outer-in"]; // checked at the start, if the model has them
const STRIDED = "outer-in"; // the order with a stride option
const MAX_STRIDE = 20;
const NUMBER = "number";

/**
 * `server` is the response of /api/models; `onSubmit()` is called when the reader wants a translation. Returns `{node,
 * query(), problem(), restore(query), showExample(), busy(on), orders, longest}`; a query is {model, direction, text,
 * reference, length, schedule, orders}.
 */
export function queryForm(server, onSubmit) {
  const { models, schedules, characters, most_orders: mostOrders } = server;
  let info = models[0];
  let direction = info.directions[0];
  let checked = []; // names of orders
  let stride = 1;
  let exampleNumber = 0;
  let exampleReference = "";

  const text = el("textarea", { id: "text", rows: "1", placeholder: "A sentence to translate", spellcheck: "false", autocomplete: "off", oninput: onType });
  const reference = el("input", { id: "reference", type: "text", class: "reference-input", placeholder: "Reference translation (optional): shows BLEU", spellcheck: "false", autocomplete: "off" });
  const counter = el("output", { class: "muted counter", for: "text" });
  const example = el("button", { type: "button", class: "plain small", onclick: () => (showExample(exampleNumber + 1), text.focus()) }, "Example");
  const model = choice("Model", models.map(({ name }) => [name, name]), info.name, (name) => setModel(name, direction));
  const directionChoice = choice("Direction", [], "", (value) => setModel(info.name, value));
  const length = choice("Length", [], "", () => (draw(), size.hidden || size.focus()));
  const size = el("input", { type: "number", min: "1", step: "1", value: "16", "aria-label": "Number of subwords", class: "size" });
  const schedule = choice("Schedule", schedules.map((name) => [name, name]), schedules[0], () => {});
  const submit = el("button", { type: "submit", class: "submit", title: "Ctrl + Enter" }, "Translate");
  const boxes = el("div", { class: "boxes" });
  const hint = el("span", { class: "muted hint" });
  const orders = el("fieldset", { class: "order-picker" }, el("legend", {}, "Orders"), boxes, hint);
  const node = el(
    "form",
    { class: "query-form", novalidate: true, autocomplete: "off", "aria-label": "Translate", onsubmit: (event) => (event.preventDefault(), onSubmit()) },
    el(
      "div",
      { class: "text-box" },
      el("label", { class: "visually-hidden", for: "text" }, "Sentence"),
      text,
      el("label", { class: "visually-hidden", for: "reference" }, "Reference"),
      reference,
      el("div", { class: "text-foot" }, example, counter),
    ),
    el("div", { class: "settings" }, model, directionChoice, el("span", { class: "pair" }, length, size), schedule, submit),
    orders,
  );
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    onSubmit();
  });
  const selectOf = (label) => label.querySelector("select");
  setModel(info.name, direction);
  updateCounter();

  /** Switches the model or the direction; orders that the new one has too stay checked. */
  function setModel(name, wantedDirection) {
    const oldDirection = direction;
    info = models.find((other) => other.name === name) ?? info;
    direction = info.directions.includes(wantedDirection) ? wantedDirection : info.directions[0];
    const available = availableOrders();
    const learned = available.filter((order) => order.startsWith("learned"));
    const hadLearned = checked.some((order) => order.startsWith("learned"));
    checked = checked.filter((order) => available.includes(order.split(":")[0]) || available.includes(order));
    if (hadLearned && learned.length && !checked.some((order) => learned.includes(order))) checked.unshift(learned[0]);
    if (!checked.length) checked = defaultOrders(available, learned);
    setOptions(selectOf(model), models.map((other) => [other.name, other.name]), info.name);
    setOptions(selectOf(directionChoice), info.directions.map((other) => [other, other.replace("-", " → ")]), direction);
    setOptions(selectOf(length), [...info.lengths.map((rule) => [rule, rule]), [NUMBER, "a number"]], selectOf(length).value);
    size.max = String(info.longest);
    draw();
    if (direction !== oldDirection && isExample(text.value)) showExample();
  }

  function defaultOrders(available, learned) {
    const wanted = [...(available.includes(DEFAULT_ORDERS[0]) ? [] : learned.slice(0, 1)), ...DEFAULT_ORDERS];
    const found = wanted.filter((order) => available.includes(order));
    return found.length ? found : available.slice(0, 1);
  }

  function availableOrders() {
    return info.orders_of?.[direction] ?? info.orders;
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

  /** Puts an example of the source language into the form; false if there is none. */
  function showExample(number = exampleNumber) {
    const examples = examplesOf(direction);
    if (!examples.length) return false;
    exampleNumber = number % examples.length;
    text.value = examples[exampleNumber].text;
    reference.value = exampleReference = examples[exampleNumber].reference;
    updateCounter();
    return true;
  }

  return {
    node,
    showExample,
    query() {
      const rule = selectOf(length).value;
      return {
        model: info.name,
        direction,
        text: text.value.replace(/\s+/g, " ").trim(),
        reference: reference.value.replace(/\s+/g, " ").trim(),
        length: rule === NUMBER ? Math.round(Number(size.value)) || 0 : rule,
        schedule: selectOf(schedule).value,
        orders: [...checked],
      };
    },
    /** Why the query cannot be sent, or "". The server checks everything else. */
    problem() {
      const { length: count } = [...text.value.trim()];
      if (!count) return "Type a sentence first.";
      if (count > characters) return `The text has ${count} characters; at most ${characters} are translated.`;
      if ([...reference.value.trim()].length > characters) return `The reference has more than ${characters} characters.`;
      return checked.length ? "" : "Choose at least one order.";
    },
    /** Takes the query of a link, as far as this server knows its names; returns a line about what it does not know, or "". */
    restore(query) {
      const linkedStride = query.orders.map((order) => /^outer-in:stride=([1-9]\d?)$/.exec(order)).find(Boolean);
      stride = linkedStride && Number(linkedStride[1]) <= MAX_STRIDE && !query.orders.includes(STRIDED) ? Number(linkedStride[1]) : 1;
      checked = query.orders;
      text.value = "";
      setModel(query.model, query.direction);
      text.value = query.text;
      reference.value = query.reference;
      exampleReference = isExample(query.text) ? query.reference : "";
      const isNumber = /^\d+$/.test(query.length);
      if (isNumber) size.value = query.length;
      if (isNumber || info.lengths.includes(query.length)) selectOf(length).value = isNumber ? NUMBER : query.length;
      setOptions(selectOf(schedule), [...new Set([...schedules, query.schedule])].map((name) => [name, name]), query.schedule);
      draw();
      updateCounter();
      if (info.name !== query.model) return `This server has no model ${query.model}; ${info.name} is used.`;
      if (direction !== query.direction) return `${info.name} does not translate ${query.direction}; ${direction} is used.`;
      return "";
    },
    busy(on) {
      submit.textContent = on ? "Translating …" : "Translate";
      submit.classList.toggle("waiting", on);
      node.setAttribute("aria-busy", String(on));
    },
    /** The orders of the chosen direction. */
    get orders() {
      return availableOrders();
    },
    /** The largest target in subwords. */
    get longest() {
      return info.longest;
    },
  };
}
