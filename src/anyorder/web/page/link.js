// The explorer's state as the part of an address after #, and back.

/** From a query and, where the reader composes, {size, advice, positions}. */
export function address(query, made) {
  const said = new URLSearchParams();
  for (const name of ["text", "model", "direction", "length"]) said.set(name, query[name]);
  for (const order of query.orders) said.append("order", order);
  if (made?.positions.length) {
    said.set("size", made.size);
    said.set("filled", made.positions.map((position) => position + 1).join("."));
    if (made.advice) said.set("advice", made.advice);
  }
  return said.toString();
}

/** {query, made} or null where nothing is said. Anyone can write a link: it is checked by the server like all else. */
export function read(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const text = said.get("text");
  if (!text) return null;
  const get = (name) => said.get(name) ?? "";
  const query = { text, model: get("model"), direction: get("direction"), length: get("length") || "predicted", orders: [...new Set(said.getAll("order"))].slice(0, 6) };
  const positions = get("filled").split(".").map((one) => Number.parseInt(one, 10) - 1);
  const size = Number.parseInt(get("size"), 10);
  const whole = size > 0 && positions.length > 0 && positions.every(Number.isInteger);
  return { query, made: whole ? { size, advice: get("advice"), positions } : null };
}
