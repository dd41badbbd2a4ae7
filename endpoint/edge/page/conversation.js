// The conversation: prompts with their answers, and the messages of the next request.

import { Answer } from "./answer.js";
import { compare, verdictElement } from "./comparison.js";
import { byId, element } from "./dom.js";

/** A prompt and one or two answers to it. */
export class Turn {
  /** Show a prompt, and empty answers: one for each of `sides`, which say whether a draft helps. */
  constructor(prompt, isChat, sides) {
    this.prompt = prompt;
    this.isChat = isChat;
    this.answers = sides.map((drafts) => new Answer(drafts));
    const said = element("p", { class: "prompt" }, element("span", { class: "unseen" }, isChat ? "You: " : "Beginning: "), prompt);
    const both = element("div", { class: "answers" }, ...this.answers.map((answer) => answer.element));
    this.element = element("li", { class: "turn" }, said, both);
  }

  /** Compare the answers if there are two, show what is found, and return it: the outcome, and words for it. */
  judge(exact) {
    if (this.answers.length < 2 || this.answers.some((answer) => answer.state === "waiting")) return ["", ""];
    const verdict = compare(...this.answers, exact);
    this.answers[0].element.parentElement.before(verdictElement(verdict));
    return verdict;
  }

  /** The answer that the conversation goes on from; undefined where nothing was written. */
  get reply() {
    return this.answers.find((answer) => answer.content);
  }
}

export class Conversation {
  #turns = [];
  #follows = true; // the text that is written, until a person scrolls

  constructor() {
    this.element = byId("conversation");
    for (const kind of ["wheel", "touchmove", "pointerdown"]) {
      this.element.addEventListener(kind, () => (this.#follows = false), { passive: true });
    }
  }

  /** Add a turn and go to it. */
  add(turn) {
    this.#turns.push(turn);
    byId("welcome").hidden = true;
    byId("turns").append(turn.element);
    this.#follows = true;
    turn.element.scrollIntoView({ block: "start" });
  }

  /** Keep the end of the text that is written in view. */
  follow(answer) {
    if (!this.#follows) return;
    const margin = 16;
    const below = answer.element.getBoundingClientRect().bottom + margin - this.element.getBoundingClientRect().bottom;
    if (below > 0) this.element.scrollTop += below;
  }

  /** Begin a new conversation. */
  clear() {
    this.#turns = [];
    byId("turns").replaceChildren();
    byId("welcome").hidden = false;
  }

  /** Return the messages of a request that asks this next, behind all that was said before. */
  messages(prompt) {
    const before = this.#turns.filter((turn) => turn.isChat && turn.reply);
    return [
      ...before.flatMap((turn) => [
        { role: "user", content: turn.prompt },
        { role: "assistant", content: turn.reply.content },
      ]),
      { role: "user", content: prompt },
    ];
  }
}
