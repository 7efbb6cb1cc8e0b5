// The explorer's API, on this page's own origin.

/** A JSON answer. Throws an Error whose message is one line for the reader; an aborted request throws as fetch does. */
export async function ask(path, query = null, signal = undefined) {
  const options = query && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(query) };
  let response;
  try {
    response = await fetch(path, { ...options, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  const answer = await response.json().catch(() => null);
  if (signal?.aborted) throw new DOMException("aborted", "AbortError");
  if (!response.ok || answer === null) throw new Error(answer?.error ?? `The server answered with status ${response.status}`);
  return answer;
}

const KEPT = 300;

/**
 * Looks at states of sentences (`/api/step`): `look(query)` gives one, or null if it is not wanted any more. A request
 * is sent after a short rest and gives way to the next; what was seen is kept.
 */
export function looker(onError, rest = 110) {
  const known = new Map();
  let pending = null;

  async function seek(query, key, signal) {
    try {
      await new Promise((resolve) => setTimeout(resolve, rest));
      if (signal.aborted) return null;
      const state = await ask("api/step", query, signal);
      if (known.size >= KEPT) known.delete(known.keys().next().value);
      known.set(key, state);
      return state;
    } catch (error) {
      if (!signal.aborted) onError(error.message);
      return null;
    } finally {
      if (pending?.key === key) pending = null;
    }
  }

  function look(query) {
    const key = JSON.stringify(query);
    if (pending?.key === key) return pending.state;
    look.cancel();
    if (known.has(key)) return Promise.resolve(known.get(key));
    const controller = new AbortController();
    pending = { key, controller, state: null };
    const made = pending;
    made.state = seek(query, key, controller.signal);
    return made.state;
  }
  look.cancel = () => {
    pending?.controller.abort();
    pending = null;
  };
  return look;
}
