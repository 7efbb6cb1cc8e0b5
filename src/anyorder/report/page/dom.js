// Elements without markup: text is always set as text, so nothing a sentence holds can become an element.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick: f`) and children (nodes or strings). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number as people read it: few digits, a real minus sign, a dash where there is none. */
export function number(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toFixed(digits).replace(/^-(?=[\d.]*[1-9])/, "−").replace(/^-/, "");
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${number(value * 100, digits)} %`;
}

/** A label and a select with options [value, text]. */
export function choice(label, options, chosen, onchange) {
  const select = el("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) });
  for (const [value, text] of options) select.append(el("option", { value, selected: value === chosen }, text));
  return el("label", { class: "choice" }, el("span", {}, label), select);
}

/** A label and a check box. */
export function check(label, checked, onchange) {
  const box = el("input", { type: "checkbox", checked, onchange: (event) => onchange(event.target.checked) });
  return el("label", { class: "check" }, box, el("span", {}, label));
}
