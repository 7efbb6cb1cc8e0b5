// The paper's notation, by the rule of `anyorder.report.terminal`: [ ] where the pen moved right, { } where it moved left.

export const BLANK = "__";

/** Maximal stretches filled one neighbour after the other: [first position, last position, +1 or -1]. */
export function runs(steps) {
  const found = [];
  let start = 0;
  while (start < steps.length - 1) {
    const direction = steps[start + 1] - steps[start];
    if (Math.abs(direction) !== 1) {
      start += 1;
      continue;
    }
    let end = start + 1;
    while (end + 1 < steps.length && steps[end + 1] - steps[end] === direction) end += 1;
    found.push([start, end, direction]);
    start = end + 1;
  }
  return found;
}

/** The sentence after step `now`. Positions without a step (null) are not filled. */
export function bracketed(tokens, steps, now) {
  const filled = steps.map((step) => step !== null && step <= now);
  const shown = tokens.map((token, i) => (filled[i] ? token : BLANK));
  // A position not filled yet must not look like anyone's neighbour in time.
  const known = steps.map((step, i) => (filled[i] ? step : -2 * (i + 1)));
  for (const [first, last, direction] of runs(known)) {
    const [left, right] = direction === 1 ? "[]" : "{}";
    shown[first] = left + shown[first];
    shown[last] += right;
  }
  return shown.join(" ");
}
