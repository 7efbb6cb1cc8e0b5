// Unpacks the data that `anyorder.report.html.pack` packed.

import { onCanvas, verdict } from "./canvas.js";

/** The embedded corpus, or null if the page holds none. */
export async function embedded() {
  const text = document.getElementById("data").textContent.trim();
  if (!text) return null;
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return corpus(JSON.parse(await new Response(stream).text()));
}

/** Access to the sentences and their metrics. */
export function corpus(data) {
  const count = data.sentences.length;
  const systems = data.systems;
  const analysis = data.analysis ?? {};
  const perSentence = analysis.per_sentence ?? {};
  const measures = Object.keys(perSentence).filter((name) => name !== "label" && fits(perSentence[name]));
  const grid = data.grid ?? null;
  const bleu = grid ? [] : measures.filter((name) => /bleu/i.test(name)); // it says nothing about a puzzle
  const labels = Object.keys(analysis.systems?.find((system) => system?.labels)?.labels ?? {});
  const likelihood = systems.map(() => new Float64Array(count));
  data.sentences.forEach(([, runs], i) => {
    runs.forEach(([, , , logprobs], s) => {
      likelihood[s][i] = logprobs.length ? -logprobs.reduce((sum, p) => sum + p, 0) / (100 * logprobs.length) : 0;
    });
  });

  function fits(values) {
    return Array.isArray(values) && values.length === systems.length && values.every((row) => Array.isArray(row) && row.length === count);
  }

  /** An answer as a grid, with what is wrong about it. */
  function withGrid(run, i, s) {
    const solved = grid.solved[s][i];
    const solution = grid.has_solutions ? [...data.references[i].trim()] : null;
    const wrong = solution && run.tokens.map((_, cell) => cell).filter((cell) => run.tokens[cell] !== solution[cell]);
    return { ...run, grid, solved, wrong: solved ? [] : wrong, text: verdict({ solved, wrong, length: run.length }) };
  }

  return {
    count,
    systems,
    analysis,
    /** {columns, rows, box, solved, mean_steps} of puzzles; null for texts. */
    grid,
    /** The names that `measure` knows, what decides first. */
    measures: [...(grid ? ["solved"] : []), ...bleu, "mean log-probability", ...measures.filter((name) => !/bleu/i.test(name))],
    labels: "label" in perSentence && fits(perSentence.label) ? labels : [],
    source: (i) => data.sentences[i][0],
    reference: (i) => data.references?.[i] ?? null,
    text: (i, s) => data.sentences[i][1][s][0],
    steps: (i, s) => data.sentences[i][1][s][2],
    length: (i) => data.sentences[i][1].reduce((most, run) => Math.max(most, run[1].length), 0),
    run(i, s) {
      const [, tokens, steps, logprobs, canvas, packed] = data.sentences[i][1][s];
      const spell = (id) => (id === null ? null : data.vocabulary[id]);
      const writes = packed?.map(([position, step, id, p]) => ({ position, step, token: spell(id), logprob: -p / 100 }));
      const run = onCanvas({ tokens: tokens.map(spell), steps, logprobs: logprobs.map((p) => -p / 100), canvas: canvas?.map(spell), writes, length: tokens.length, order: systems[s].name });
      return grid ? withGrid(run, i, s) : run;
    },
    /** A metric of one sentence in one system; null if there is none. */
    measure(name, i, s) {
      if (grid && name === "solved") return Number(grid.solved[s][i]);
      return name === "mean log-probability" ? likelihood[s][i] : (perSentence[name]?.[s]?.[i] ?? null);
    },
    label(i, s) {
      const index = perSentence.label?.[s]?.[i];
      return index === null || index === undefined ? null : (labels[index] ?? null);
    },
  };
}

/** A label in words: it says which way an order leans, so `mostly` is put before it unless the order is exactly that. */
export function labelText(label, steps) {
  if (label === null || label === "other") return label;
  const isSorted = (values) => values.every((step, i) => i === 0 || values[i - 1] <= step);
  const later = (values) => values.map((step, i) => [Math.max(...values.slice(0, i + 1)), Math.max(...values.slice(i))].includes(step));
  const isExact = {
    "left-to-right": () => isSorted(steps),
    "right-to-left": () => isSorted([...steps].reverse()),
    "outer-to-inner": () => later(steps).every(Boolean),
    "inner-to-outer": () => later(steps.map((step) => -step)).every(Boolean),
  }[label];
  return isExact?.() ? label : `mostly ${label}`;
}

/** How much the orders of a sentence disagree, from 0 to 1: (1 − mean Kendall τ) / 2 over pairs of the same length. */
export function disagreement(all) {
  let sum = 0;
  let pairs = 0;
  for (let a = 0; a < all.length; a += 1) {
    for (let b = a + 1; b < all.length; b += 1) {
      if (all[a].length !== all[b].length || all[a].length < 2) continue;
      sum += kendall(all[a], all[b]);
      pairs += 1;
    }
  }
  return pairs ? (1 - sum / pairs) / 2 : 0;
}

function kendall(one, other) {
  let score = 0;
  const n = one.length;
  for (let i = 0; i < n; i += 1) {
    for (let j = i + 1; j < n; j += 1) score += Math.sign(one[i] - one[j]) * Math.sign(other[i] - other[j]);
  }
  return (2 * score) / (n * (n - 1));
}
