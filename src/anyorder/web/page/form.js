// What the reader asks for: a sentence, a model, a direction, a length and orders.

import { check, choice, el, offer } from "./dom.js";

const EXAMPLES = {
  de: ["Guten Morgen, wie geht es dir heute?", "Das neue Haus, das wir gestern gesehen haben, ist viel zu teuer.", "Die Regierung will die Steuern im nächsten Jahr senken."],
  en: ["Good morning, how are you today?", "The new house that we saw yesterday is far too expensive.", "The government wants to cut taxes next year."],
  ro: ["Bună dimineața, ce mai faci astăzi?", "Guvernul vrea să reducă taxele anul viitor."],
  fr: ["Bonjour, comment allez-vous aujourd'hui ?", "Le gouvernement veut baisser les impôts l'année prochaine."],
  zh: ["早上好，你今天怎么样？", "政府希望明年减税。"],
};
const FIRST = ["learned", "margin", "left-to-right", "outer-in", "uniform"]; // ticked at the start, as far as they exist
const AT_START = 4;
const NUMBER = "number";

/**
 * `offered` is the answer of /api/models; `onSubmit()` is called when the reader wants a translation. Returns
 * `{node, query(), put(query), busy(on), orders}`; a query is {model, direction, text, length, orders}.
 */
export function form(offered, onSubmit) {
  const { models, characters, most_orders: most } = offered;
  let card = models[0];
  let direction = card.directions[0];
  let ticked = [];
  let turn = 0;

  const text = el("textarea", { id: "text", rows: "1", placeholder: "A sentence to translate", spellcheck: "false", autocomplete: "off", oninput: count });
  const counter = el("output", { class: "quiet counter", for: "text" });
  const example = el("button", { type: "button", class: "plain small", onclick: suggest }, "Example");
  const model = choice("Model", models.map(({ name }) => [name, name]), card.name, (name) => take(name, direction));
  const way = choice("Direction", [], "", (value) => take(card.name, value));
  const length = choice("Length", [], "", () => (draw(), size.hidden || size.focus()));
  const size = el("input", { type: "number", min: "1", step: "1", value: "16", "aria-label": "Number of subwords", class: "size" });
  const go = el("button", { type: "submit", class: "go", title: "Ctrl + Enter" }, "Translate");
  const boxes = el("div", { class: "boxes" });
  const hint = el("span", { class: "quiet hint" });
  const orders = el("fieldset", { class: "pick-orders" }, el("legend", {}, "Orders"), boxes, hint);
  const node = el(
    "form",
    { class: "ask", novalidate: true, autocomplete: "off", "aria-label": "Translate", onsubmit: (event) => (event.preventDefault(), onSubmit()) },
    el("div", { class: "sheet" }, el("label", { class: "unseen", for: "text" }, "Sentence"), text, el("div", { class: "sheet-foot" }, example, counter)),
    el("div", { class: "settings" }, model, way, el("span", { class: "pair" }, length, size), go),
    orders,
  );
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    onSubmit();
  });
  const select = (label) => label.querySelector("select");
  take(card.name, direction);
  count();

  /** Another model or direction; what the new one knows too stays chosen. */
  function take(name, wanted) {
    card = models.find((one) => one.name === name) ?? card;
    direction = card.directions.includes(wanted) ? wanted : card.directions[0];
    const known = available();
    const own = known.filter((order) => order.startsWith("learned"));
    const learned = ticked.some((order) => order.startsWith("learned"));
    ticked = ticked.filter((order) => known.includes(order.split(":")[0]) || known.includes(order));
    if (learned && own.length && !ticked.some((order) => own.includes(order))) ticked.unshift(own[0]);
    if (!ticked.length) {
      ticked = [...new Set([...own, ...FIRST, ...known])].filter((order) => known.includes(order)).slice(0, AT_START);
    }
    const before = select(length).value;
    offer(select(model), models.map((one) => [one.name, one.name]), card.name);
    offer(select(way), card.directions.map((one) => [one, one.replace("-", " → ")]), direction);
    offer(select(length), [...card.lengths.map((one) => [one, one]), [NUMBER, "a number"]], before);
    size.max = String(card.longest);
    draw();
  }

  function available() {
    return card.orders_of?.[direction] ?? card.orders;
  }

  function draw() {
    size.hidden = select(length).value !== NUMBER;
    const all = [...new Set([...available(), ...ticked])]; // a link may bring orders with options
    boxes.replaceChildren(
      ...all.map((order) =>
        check(order, ticked.includes(order), (on) => {
          ticked = on ? [...ticked, order] : ticked.filter((one) => one !== order);
          limit();
        }),
      ),
    );
    limit();
  }

  /** No more than the server takes. */
  function limit() {
    const full = ticked.length >= most;
    for (const label of boxes.children) {
      const box = label.querySelector("input");
      box.disabled = full && !box.checked;
    }
    hint.textContent = full ? `${most} at most` : "";
  }

  function count() {
    const length = [...text.value].length;
    counter.textContent = length ? `${length} / ${characters}` : "";
    counter.classList.toggle("over", length > characters);
    grow();
  }

  function grow() {
    text.style.height = "auto";
    text.style.height = `${Math.min(220, text.scrollHeight + 2)}px`;
  }

  // Before it stands in the page, and when a phone is turned, its lines are others.
  let wide = 0;
  new ResizeObserver(() => {
    if (text.clientWidth === wide) return;
    wide = text.clientWidth;
    grow();
  }).observe(text);

  function suggest() {
    const all = EXAMPLES[direction.split("-")[0]] ?? EXAMPLES.en;
    text.value = all[turn++ % all.length];
    count();
    text.focus();
  }

  return {
    node,
    query() {
      const wanted = select(length).value;
      const known = [...new Set([...available(), ...ticked])];
      return {
        model: card.name,
        direction,
        text: text.value.replace(/\s+/g, " ").trim(),
        length: wanted === NUMBER ? Math.round(Number(size.value)) || 0 : wanted,
        orders: known.filter((order) => ticked.includes(order)),
      };
    },
    /** Why there is nothing to ask for, or "". The server sees to the rest. */
    problem() {
      const { length } = [...text.value.trim()];
      if (!length) return "Type a sentence first.";
      if (length > characters) return `The text has ${length} characters, at most ${characters} are translated.`;
      return ticked.length ? "" : "Choose at least one order.";
    },
    /** What a link says, as far as this server knows it; gives a line about what it does not know, or "". */
    put(query) {
      text.value = query.text;
      ticked = query.orders;
      take(query.model, query.direction);
      const isNumber = /^\d+$/.test(query.length);
      if (isNumber) size.value = query.length;
      if (isNumber || card.lengths.includes(query.length)) select(length).value = isNumber ? NUMBER : query.length;
      draw();
      count();
      if (card.name !== query.model) return `This server has no model ${query.model}; ${card.name} is used.`;
      if (direction !== query.direction) return `${card.name} does not translate ${query.direction}; ${direction} is used.`;
      return "";
    },
    busy(on) {
      go.textContent = on ? "Translating …" : "Translate";
      go.classList.toggle("waiting", on);
      node.setAttribute("aria-busy", String(on));
    },
    focus: () => text.focus(),
    /** Orders that this direction has, and the largest target. */
    get orders() {
      return available();
    },
    get longest() {
      return card.longest;
    },
  };
}
