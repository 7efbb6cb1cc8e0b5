// A list of any length that draws only the rows in sight.

import { el } from "./dom.js";

/** `{node, set(items), choose(index)}`; `draw(row, item)` fills a row, `onChoose(item)` is told of the reader's choice. */
export function list(label, rowHeight, draw, onChoose) {
  let items = [];
  let chosen = -1;
  const rows = new Map();
  const inner = el("div", { class: "rows", role: "presentation" });
  const node = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": label, onkeydown: key }, inner);
  node.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  new ResizeObserver(() => paint()).observe(node);

  function paint() {
    const first = Math.max(0, Math.floor(node.scrollTop / rowHeight) - 4);
    const end = Math.min(items.length, Math.ceil((node.scrollTop + node.clientHeight) / rowHeight) + 4);
    for (const [index, row] of rows) {
      if (index < first || index >= end) {
        row.remove();
        rows.delete(index);
      }
    }
    for (let index = first; index < end; index += 1) if (!rows.has(index)) inner.append(make(index));
  }

  function make(index) {
    const row = el("div", { class: "row", role: "option", id: `row-${index}`, "aria-posinset": index + 1, "aria-setsize": items.length });
    row.setAttribute("aria-selected", String(index === chosen));
    row.style.top = `${index * rowHeight}px`;
    row.style.height = `${rowHeight}px`;
    row.addEventListener("click", () => pick(index));
    draw(row, items[index]);
    rows.set(index, row);
    return row;
  }

  function mark(index) {
    rows.get(chosen)?.setAttribute("aria-selected", "false");
    chosen = index;
    rows.get(chosen)?.setAttribute("aria-selected", "true");
    if (index >= 0) node.setAttribute("aria-activedescendant", `row-${index}`);
    else node.removeAttribute("aria-activedescendant");
  }

  function bring(index) {
    const top = index * rowHeight;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + rowHeight > node.scrollTop + node.clientHeight) node.scrollTop = top + rowHeight - node.clientHeight;
    paint();
  }

  function pick(index) {
    if (!items.length) return;
    const target = Math.min(items.length - 1, Math.max(0, index));
    bring(target);
    mark(target);
    onChoose(items[target]);
  }

  /** Up, down and pages; what goes sideways, Home and End belong to the steps of the chosen item. */
  function key(event) {
    const page = Math.max(1, Math.floor(node.clientHeight / rowHeight) - 1);
    const to = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + page, PageUp: chosen - page }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    pick(to);
  }

  return {
    node,
    /** Other items; the chosen one stays chosen where it is still there. The list shows its beginning, or that one. */
    set(next, selected, reveal = false) {
      for (const row of rows.values()) row.remove();
      rows.clear();
      items = next;
      inner.style.height = `${items.length * rowHeight}px`;
      chosen = items.indexOf(selected);
      mark(chosen);
      node.scrollTop = reveal && chosen >= 0 ? chosen * rowHeight - (node.clientHeight - rowHeight) / 2 : 0;
      paint();
    },
    move: (by) => pick(chosen + by),
    choose: pick,
  };
}
