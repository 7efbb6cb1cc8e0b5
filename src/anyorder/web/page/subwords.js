// Subwords as vocabularies mark them: `hous@@` goes on (BPE), `##es` continues (WordPiece), and `Ġhouse` or `▁house`
// begins a word (byte-level BPE, SentencePiece).

const BEGINS = /^[Ġ▁]/;

/** A subword without its mark. */
export function spelled(token) {
  return token.replace(/@@$/, "").replace(/^(##|[Ġ▁])(?=.)/, "");
}

/** Positions grouped by word; null, a mask, is a word of its own. */
export function wordsOf(tokens) {
  const marksBegin = tokens.some((token) => token !== null && BEGINS.test(token));
  const words = [];
  tokens.forEach((token, i) => {
    const before = i ? tokens[i - 1] : null;
    const continues = before !== null && (before.endsWith("@@") || (token !== null && (/^##./.test(token) || (marksBegin && !BEGINS.test(token)))));
    if (continues) words.at(-1).push(i);
    else words.push([i]);
  });
  return words;
}
