// The comparison of two answers to one prompt: whether their texts are equal, said in a place that every reader sees.

import { element } from "./dom.js";

const CHARACTERS = 24; // of each text, around the place where they differ

/** Return the number of items that two lists, or texts, have in common at their beginning. */
function shared(one, other) {
  let number = 0;
  while (number < one.length && number < other.length && one[number] === other[number]) number += 1;
  return number;
}

/**
 * Return the outcome ("equal", "differs" or "open"), what to say of it, and the rest of what is known.
 *
 * Texts are equal if all their tokens are, and their characters. If one of them was not written to its end, they can
 * only be seen to differ.
 */
export function compare(draft, plain, exact) {
  const areDone = draft.state === "ended" && plain.state === "ended";
  const numTokens = shared(draft.tokenIds, plain.tokenIds);
  const fewest = Math.min(draft.tokenIds.length, plain.tokenIds.length);
  const hasOtherEnd = areDone && (draft.tokenIds.length !== plain.tokenIds.length || draft.text !== plain.text);
  if (numTokens < fewest || hasOtherEnd) {
    const at = shared(draft.text, plain.text);
    const [one, other] = [draft, plain].map(({ text }) => text.slice(Math.max(0, at - CHARACTERS), at + CHARACTERS));
    const why =
      exact === "proved"
        ? "This server promises equal texts, so this is a fault: please report it."
        : "This server does not promise equal texts.";
    return ["differs", `The texts differ after ${numTokens} tokens.`, `“${one}” with the draft, “${other}” without it. ${why}`];
  }
  if (!areDone) return ["open", "The texts are not compared to the end.", `Their first ${fewest} tokens are equal.`];
  const saved = draft.rounds < plain.rounds ? `, in ${draft.rounds} rounds instead of ${plain.rounds}` : "";
  return ["equal", "Both texts are equal, token for token.", `${numTokens} tokens${saved}.`];
}

/** Return the element that says how two answers compare. */
export function verdictElement([outcome, said, more]) {
  const sign = { equal: "=", differs: "≠", open: "…" }[outcome];
  const words = element("span", {}, element("strong", {}, said), ` ${more}`);
  return element("p", { class: `verdict ${outcome}` }, element("span", { class: "sign", "aria-hidden": "true" }, sign), words);
}
