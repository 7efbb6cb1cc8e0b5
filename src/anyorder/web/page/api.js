// Requests to the explorer's API, on the origin of this page.

/** A JSON response. Throws an Error with a one-line message for the reader; an aborted request throws as fetch does. */
export async function request(path, query = null, signal = undefined) {
  const options = query && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(query) };
  let response;
  try {
    response = await fetch(path, { ...options, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not respond. Is it still running?");
  }
  const result = await response.json().catch(() => null);
  if (signal?.aborted) throw new DOMException("aborted", "AbortError");
  if (!response.ok || result === null) throw new Error(result?.error ?? `The server responded with status ${response.status}`);
  return result;
}

const CACHE_SIZE = 300;

/**
 * Fetches states of sentences (`/api/step`): `fetchState(query)` returns a state, or null if a later call replaced it. A
 * request waits a moment, so that moving the pointer across a sentence sends only one. States are cached.
 */
export function stateFetcher(onError, delay = 110) {
  const cache = new Map();
  let pending = null;

  async function fetchAfterDelay(query, key, signal) {
    try {
      await new Promise((resolve) => setTimeout(resolve, delay));
      if (signal.aborted) return null;
      const state = await request("api/step", query, signal);
      if (cache.size >= CACHE_SIZE) cache.delete(cache.keys().next().value);
      cache.set(key, state);
      return state;
    } catch (error) {
      if (!signal.aborted) onError(error.message);
      return null;
    } finally {
      if (pending?.key === key) pending = null;
    }
  }

  function fetchState(query) {
    const key = JSON.stringify(query);
    if (pending?.key === key) return pending.state;
    fetchState.cancel();
    if (cache.has(key)) return Promise.resolve(cache.get(key));
    const controller = new AbortController();
    const started = { key, controller, state: null };
    pending = started;
    started.state = fetchAfterDelay(query, key, controller.signal);
    return started.state;
  }
  fetchState.cancel = () => {
    pending?.controller.abort();
    pending = null;
  };
  return fetchState;
}
