// The explorer's state as the part of the address after #, and back.

const MOST_ORDERS = 6;

/** The parameters of a query and, if positions were filled by hand, of {size, advice, fills: [{position, token}]}. */
export function toHash(query, byHand) {
  const parameters = new URLSearchParams();
  for (const name of ["text", "model", "task", "length"]) if (query[name]) parameters.set(name, query[name]); // only translations have the last two
  if (query.schedule !== "one") parameters.set("schedule", query.schedule);
  if (query.revision !== "none") parameters.set("revision", query.revision);
  if (query.reference) parameters.set("reference", query.reference);
  for (const order of query.orders) parameters.append("order", order);
  if (byHand?.fills.length) {
    parameters.set("size", byHand.size);
    parameters.set("filled", byHand.fills.map(({ position }) => position + 1).join("."));
    for (const { position, token } of byHand.fills) if (token !== null) parameters.append("token", `${position + 1}:${token}`);
    if (byHand.advice) parameters.set("advice", byHand.advice);
  }
  return parameters.toString();
}

/** Removes the access token from the address, so that no copied link holds it. From here on a cookie carries it. */
export function hideToken() {
  const address = new URL(location.href);
  if (!address.searchParams.has("token")) return;
  address.searchParams.delete("token");
  window.history.replaceState(null, "", address);
}

/** {query, byHand}, or null if the hash holds no text. Anyone can write a link; the server checks its values. */
export function fromHash(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const get = (name) => parameters.get(name) ?? "";
  const text = get("text");
  if (!text) return null;
  const query = {
    text,
    model: get("model"),
    task: get("task"),
    length: get("length"),
    schedule: get("schedule") || "one",
    revision: get("revision") || "none",
    reference: get("reference"),
    orders: [...new Set(parameters.getAll("order"))].slice(0, MOST_ORDERS),
  };
  const tokens = new Map(parameters.getAll("token").map((entry) => /^(\d+):(.+)$/s.exec(entry)).filter(Boolean).map(([, position, token]) => [Number(position) - 1, token]));
  const positions = get("filled").split(".").map((position) => Number.parseInt(position, 10) - 1);
  const size = Number.parseInt(get("size"), 10);
  const isComplete = size > 0 && positions.length > 0 && positions.every(Number.isInteger);
  const fills = positions.map((position) => ({ position, token: tokens.get(position) ?? null }));
  return { query, byHand: isComplete ? { size, advice: get("advice"), fills } : null };
}
