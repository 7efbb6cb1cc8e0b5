// Writes: a revision masks tokens again, and then a position is written more than once.

/**
 * By position, its writes {step, token, logprob} in order. Without `run.writes` every position that has a step was written
 * once.
 */
export function writesOf(run) {
  if (!run.writes) return run.steps.map((step, i) => (step === null || step === undefined ? [] : [{ step, token: run.tokens[i], logprob: run.logprobs?.[i] ?? null }]));
  const writes = run.tokens.map(() => []);
  for (const { position, step, token, logprob } of run.writes) writes[position].push({ step, token, logprob });
  return writes;
}

/** The number of the write that stands there after a step; -1 before the first one. */
export function latest(writes, step) {
  return writes.findLastIndex((write) => write.step <= step);
}

/** All writes as {position, step} in the order in which they were made, from left to right within a step. */
export function path(writesByPosition) {
  const all = writesByPosition.flatMap((writes, position) => writes.map(({ step }) => ({ position, step })));
  return all.sort((a, b) => a.step - b.step || a.position - b.position);
}

/** {tokens, steps} after a step, as `bracketed` takes them: null where masked. A token that replaced another one in this step is old->new. */
export function stateAt(run, writesByPosition, step) {
  const tokens = [...run.tokens];
  const steps = run.tokens.map(() => null);
  writesByPosition.forEach((writes, i) => {
    if (!writes.length) return;
    const at = latest(writes, step);
    const write = writes[at];
    const replaced = at > 0 && write.step === step && writes[at - 1].token !== write.token;
    tokens[i] = replaced ? `${writes[at - 1].token}->${write.token}` : (write?.token ?? null);
    steps[i] = write?.step ?? null;
  });
  return { tokens, steps };
}

/** How many positions ended with another token than they had at first. */
export function changedCount(writesByPosition) {
  return writesByPosition.filter((writes) => writes.length && writes[0].token !== writes.at(-1).token).length;
}
