// Canvases of which a part was given: the words of a text with masks, the clues of a puzzle.

/**
 * A run with an entry for every position of its canvas. What was given has a token and no step. `canvas` holds the given
 * tokens, null where one was filled in; without it, everything was filled in.
 */
export function onCanvas(run) {
  if (!run.canvas) return run;
  const [tokens, steps, logprobs] = [[...run.canvas], run.canvas.map(() => null), run.canvas.map(() => null)];
  const positions = tokens.map((_, i) => i).filter((i) => run.canvas[i] === null);
  positions.forEach((position, i) => {
    tokens[position] = run.tokens[i];
    steps[position] = run.steps[i];
    logprobs[position] = run.logprobs[i] ?? null;
  });
  return { ...run, tokens, steps, logprobs };
}

/** What to say about an answer once it is complete; `wrong` is null where the solution is not known. */
export function verdict({ solved, wrong, length }) {
  if (solved) return "Solved";
  if (!wrong?.length) return "Not solved";
  return `Not solved: ${wrong.length} of ${length} cells ${wrong.length === 1 ? "is" : "are"} wrong`;
}
