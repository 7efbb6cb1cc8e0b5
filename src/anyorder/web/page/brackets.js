// The paper's notation, as `anyorder.report.terminal` prints it: [ ] around a stretch filled rightwards, { } leftwards.

export const BLANK = "__";

/** Maximal stretches of neighbors filled in consecutive steps: [first position, last position, +1 or -1]. */
export function runs(steps) {
  const stretches = [];
  let start = 0;
  while (start < steps.length - 1) {
    const direction = steps[start + 1] - steps[start];
    if (Math.abs(direction) !== 1) {
      start += 1;
      continue;
    }
    let end = start + 1;
    while (end + 1 < steps.length && steps[end + 1] - steps[end] === direction) end += 1;
    stretches.push([start, end, direction]);
    start = end + 1;
  }
  return stretches;
}

/** The sentence after a step. A position whose step is null was given, or is not filled and its token is null. */
export function bracketed(tokens, steps, step) {
  const filled = steps.map((at) => at !== null && at <= step);
  const shown = tokens.map((token, i) => (filled[i] || steps[i] === null ? (token ?? BLANK) : BLANK));
  // Positions that are not filled yet get numbers that are consecutive with no other.
  const known = steps.map((at, i) => (filled[i] ? at : -2 * (i + 1)));
  for (const [first, last, direction] of runs(known)) {
    const [left, right] = direction === 1 ? "[]" : "{}";
    shown[first] = left + shown[first];
    shown[last] += right;
  }
  return shown.join(" ");
}
