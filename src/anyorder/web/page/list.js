// A list of any length that draws only the visible rows.

import { el } from "./dom.js";

/** `{node, set(items), choose(index), move(by)}`; `draw(row, item)` fills a row, `onChoose(item)` is called when the reader chooses. */
export function list(label, rowHeight, draw, onChoose) {
  let items = [];
  let chosen = -1;
  const rows = new Map();
  const inner = el("div", { class: "rows", role: "presentation" });
  const node = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": label, onkeydown: onKey }, inner);
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
    for (let index = first; index < end; index += 1) if (!rows.has(index)) inner.append(createRow(index));
  }

  function createRow(index) {
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

  function scrollTo(index) {
    const top = index * rowHeight;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + rowHeight > node.scrollTop + node.clientHeight) node.scrollTop = top + rowHeight - node.clientHeight;
    paint();
  }

  function pick(index) {
    if (!items.length) return;
    const target = Math.min(items.length - 1, Math.max(0, index));
    scrollTo(target);
    mark(target);
    onChoose(items[target]);
  }

  /** Up, down and page keys. Left, right, Home and End belong to the steps of the chosen item. */
  function onKey(event) {
    const page = Math.max(1, Math.floor(node.clientHeight / rowHeight) - 1);
    const target = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + page, PageUp: chosen - page }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    pick(target);
  }

  return {
    node,
    /** Replaces the items and marks the selected one. Scrolls to the top, or with `reveal` to the selected item. */
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
