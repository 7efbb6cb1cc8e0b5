// Builds elements without parsing markup: text is always set as text, so no sentence can become an element.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes, listeners (`onclick: f`) and children (nodes or strings). */
export function el(tag, attributes = {}, ...children) {
  return assemble(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return assemble(document.createElementNS(SVG, tag), attributes, children);
}

function assemble(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  link: "M6.6 9.4a.7.7 0 0 1 0-1l2-2a.7.7 0 0 1 1 1l-2 2a.7.7 0 0 1-1 0zM8.2 3.6l.9-.9a3 3 0 0 1 4.2 4.2l-1.6 1.6-1-1 1.6-1.6a1.6 1.6 0 0 0-2.2-2.2l-.9.9zM7.8 12.4l-.9.9a3 3 0 0 1-4.2-4.2l1.6-1.6 1 1-1.6 1.6a1.6 1.6 0 0 0 2.2 2.2l.9-.9z",
  play: "M5 3.2v9.6L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  moon: "M13.2 9.9A5.8 5.8 0 0 1 6.1 2.8a5.8 5.8 0 1 0 7.1 7.1z",
  sun: "M8 4.6a3.4 3.4 0 1 0 0 6.8 3.4 3.4 0 0 0 0-6.8zM7.4 1h1.2v2H7.4zM7.4 13h1.2v2H7.4zM1 7.4h2v1.2H1zM13 7.4h2v1.2h-2zM2.6 3.5l.9-.9 1.4 1.4-.9.9zM11.1 12l.9-.9 1.4 1.4-.9.9zM2.6 12.5 4 11.1l.9.9-1.4 1.4zM11.1 4l1.4-1.4.9.9L12 4.9z",
};

/** A small icon in the color of the text. Unicode symbols would become colored emoji on phones. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", class: "icon" }, svg("path", { d: ICONS[name] }));
}

/** A number with few digits and a real minus sign; a dash where there is no number. */
export function formatNumber(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toFixed(digits).replace(/^-(?=[\d.]*[1-9])/, "−").replace(/^-/, "");
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${formatNumber(value * 100, digits)} %`;
}

/** A labeled select with options [value, text]. */
export function choice(label, options, chosen, onchange) {
  const select = el("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) });
  setOptions(select, options, chosen);
  return el("label", { class: "choice" }, el("span", {}, label), select);
}

/** Replaces the options [value, text] of a select. */
export function setOptions(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

/** A labeled check box. */
export function check(label, checked, onchange) {
  const box = el("input", { type: "checkbox", checked, onchange: (event) => onchange(event.target.checked) });
  return el("label", { class: "check" }, box, el("span", {}, label));
}
