// Where the pen went: an arc from each position to the one filled next, above the line to the right, below to the left.

import { place, scale } from "./colour.js";
import { svg } from "./dom.js";

/** Positions in the order in which they were filled, from the left within one step; empty ones are left out. */
export function permutation(steps) {
  const filled = steps.map((_, i) => i).filter((i) => steps[i] !== null);
  return filled.sort((a, b) => steps[a] - steps[b] || a - b);
}

/** A drawing of the jumps: `{node, draw(width), show(step)}`. */
export function arcs(steps, count) {
  const node = svg("svg", { class: "arcs", role: "img", "aria-label": "Arcs of jumps between positions" });
  const path = permutation(steps);
  let marks = [];
  let now = count;

  function draw(width) {
    const gap = (width - 16) / Math.max(1, steps.length - 1);
    const x = (i) => 8 + i * gap;
    let up = 0;
    let down = 0;
    path.slice(1).forEach((to, k) => {
      const jump = to - path[k];
      if (jump > 0) up = Math.max(up, jump);
      else down = Math.max(down, -jump);
    });
    const height = (jump) => (jump <= 0 ? 0 : Math.min(56, 5 + 9 * Math.sqrt(jump)));
    const axis = 7 + height(up);
    const total = axis + height(down) + 7;
    node.setAttribute("viewBox", `0 0 ${width} ${total}`);
    node.setAttribute("height", total);
    node.replaceChildren();
    marks = [];
    node.append(svg("line", { class: "axis", x1: x(0), x2: x(steps.length - 1), y1: axis, y2: axis }));
    path.slice(1).forEach((to, k) => {
      const from = path[k];
      const bend = 2 * height(Math.abs(to - from)) * (to > from ? -1 : 1);
      const [a, b] = [x(from), x(to)];
      const d = `M${a} ${axis}C${a + (b - a) * 0.15} ${axis + bend * 0.66} ${b - (b - a) * 0.15} ${axis + bend * 0.66} ${b} ${axis}`;
      mark(svg("path", { d, stroke: scale(place(steps[to], count)) }), steps[to]);
    });
    const radius = Math.max(1.8, Math.min(4, gap * 0.32));
    for (const i of path) mark(svg("circle", { cx: x(i), cy: axis, r: radius, fill: scale(place(steps[i], count)) }), steps[i]);
    show(now);
  }

  function mark(shape, step) {
    node.append(shape);
    marks.push([shape, step]);
  }

  function show(step) {
    now = step;
    for (const [shape, at] of marks) {
      shape.classList.toggle("off", at > step);
      shape.classList.toggle("now", at === step);
    }
  }

  return { node, draw, show };
}
