// Example texts with masks, and sentences in several languages, each a translation of the others: where the target
// language has one too, it is the reference.

const SENTENCES = [
  {
    de: "Guten Morgen, wie geht es dir heute?",
    en: "Good morning, how are you today?",
    ro: "Bună dimineața, ce mai faci astăzi?",
    fr: "Bonjour, comment allez-vous aujourd'hui ?",
    zh: "早上好，你今天怎么样？",
  },
  {
    de: "Das neue Haus, das wir gestern gesehen haben, ist viel zu teuer.",
    en: "The new house that we saw yesterday is far too expensive.",
  },
  {
    de: "Die Regierung will die Steuern im nächsten Jahr senken.",
    en: "The government wants to cut taxes next year.",
    ro: "Guvernul vrea să reducă taxele anul viitor.",
    fr: "Le gouvernement veut baisser les impôts l'année prochaine.",
    zh: "政府希望明年减税。",
  },
];

const MASKED = ["The [MASK] [MASK] sat on the mat.", "Paris is the [MASK] of [MASK].", "She opened the [MASK] and [MASK] the [MASK] inside."];

/** Examples of texts with masks: [{text, reference}]. */
export function maskedExamples() {
  return MASKED.map((text) => ({ text, reference: "" }));
}

/** The examples of a direction such as "de-en": [{text, reference}]; the reference may be "". */
export function examplesOf(direction) {
  const [source, target] = direction.split("-");
  return SENTENCES.filter((sentence) => sentence[source]).map((sentence) => ({ text: sentence[source], reference: sentence[target] ?? "" }));
}

/** Whether a text is an example of any kind. */
export function isExample(text) {
  return MASKED.includes(text) || SENTENCES.some((sentence) => Object.values(sentence).includes(text));
}
