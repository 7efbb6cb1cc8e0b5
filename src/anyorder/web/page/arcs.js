// An arc from each position to the one that is filled next: above the line if it goes right, below if it goes left.

import { scale, stepTone } from "./color.js";
import { svg } from "./dom.js";

/** Filled positions in the order in which they were filled, from left to right within a step. */
export function permutation(steps) {
  const filled = steps.map((_, i) => i).filter((i) => steps[i] !== null);
  return filled.sort((a, b) => steps[a] - steps[b] || a - b);
}

/**
 * A drawing of the jumps: `{node, draw(width), show(step)}`. `path` has every write, {position, step}, in order; `size` is the
 * number of positions, and `count` that of the last step.
 */
export function arcs(path, size, count) {
  const node = svg("svg", { class: "arcs", role: "img", "aria-label": "Arcs of jumps between positions" });
  let marks = []; // by step
  let current = count;

  function draw(width) {
    const gap = (width - 16) / Math.max(1, size - 1);
    const x = (i) => 8 + i * gap;
    let up = 0;
    let down = 0;
    path.slice(1).forEach(({ position }, k) => {
      const jump = position - path[k].position;
      if (jump > 0) up = Math.max(up, jump);
      else down = Math.max(down, -jump);
    });
    const height = (jump) => (jump <= 0 ? 0 : Math.min(56, 5 + 9 * Math.sqrt(jump)));
    const axis = 7 + height(up);
    const total = axis + height(down) + 7;
    node.setAttribute("viewBox", `0 0 ${width} ${total}`);
    node.setAttribute("height", total);
    node.replaceChildren();
    marks = Array.from({ length: count + 1 }, () => []);
    node.append(svg("line", { class: "axis", x1: x(0), x2: x(size - 1), y1: axis, y2: axis }));
    path.slice(1).forEach(({ position: to, step }, k) => {
      const from = path[k].position;
      const bend = 2 * height(Math.abs(to - from)) * (to > from ? -1 : 1);
      const [a, b] = [x(from), x(to)];
      const d = `M${a} ${axis}C${a + (b - a) * 0.15} ${axis + bend * 0.66} ${b - (b - a) * 0.15} ${axis + bend * 0.66} ${b} ${axis}`;
      mark(svg("path", { d }), step);
    });
    const radius = Math.max(1.8, Math.min(4, gap * 0.32));
    for (const { position, step } of path) mark(svg("circle", { cx: x(position), cy: axis, r: radius }), step);
    for (let step = current + 1; step <= count; step += 1) set(step, "off", true);
    set(current, "now", true);
  }

  function mark(shape, step) {
    shape.style.setProperty("--tone", scale(stepTone(step, count)));
    node.append(shape);
    marks[step].push(shape);
  }

  function show(step) {
    set(current, "now", false);
    for (let at = current + 1; at <= step; at += 1) set(at, "off", false);
    for (let at = step + 1; at <= current; at += 1) set(at, "off", true);
    current = step;
    set(current, "now", true);
  }

  function set(step, name, on) {
    for (const shape of marks[step] ?? []) shape.classList.toggle(name, on);
  }

  return { node, draw, show };
}
