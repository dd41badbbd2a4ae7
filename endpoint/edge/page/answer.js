// An answer: one text as it is written, with what its drafts did for it.

import { element } from "./dom.js";

const NUMBERS = [
  ["first", "First token", "from the request to the first token"],
  ["speed", "Tokens a second", "since the request was sent"],
  ["round", "Tokens a round", "tokens that one pass of the target yields, on average"],
  ["rate", "Accepted", "share of the drafted tokens that were accepted"],
  ["tokens", "Tokens", "tokens of the answer"],
];
const ENDINGS = { stop: "Ended by itself.", length: "Ended at the limit of tokens." };

/** Return text in one line, without white space at its ends unless it has nothing else. */
const visible = (text) => text.replaceAll("\n", "⏎").trim() || "␣";

export class Answer {
  /** Make an empty answer, whose element is to be placed; `drafts` says whether a draft helps to write it. */
  constructor(drafts) {
    this.drafts = drafts;
    this.tokenIds = [];
    this.content = ""; // as the next request has it: without thoughts
    this.text = "";
    this.rounds = 0;
    this.state = "waiting"; // then writing, ended, stopped or failed
    this.counts = { tokens: 0, drafted: 0, accepted: 0 };
    const title = drafts ? "With the draft" : "Without the draft";
    this.output = element("div", { class: "output", role: "region", "aria-label": `Text ${title.toLowerCase()}`, tabindex: 0 });
    this.note = element("p", { class: "note" });
    this.cells = {};
    const list = element("dl", { class: "numbers" });
    for (const [name, label, hint] of NUMBERS) {
      this.cells[name] = element("dd", { "data-number": name }, "–");
      list.append(element("div", { title: hint }, element("dt", {}, label), this.cells[name]));
    }
    this.element = element("article", { class: "answer", "data-side": drafts ? "with" : "without" });
    this.element.append(element("h3", {}, title), list, this.output, this.note);
  }

  /** Say below the text how things stand. */
  say(text, isWrong = false) {
    this.note.textContent = text;
    this.note.classList.toggle("wrong", isWrong);
  }

  /** Begin to count time: the request is about to be sent. */
  begin() {
    this.state = "writing";
    this.sentAt = performance.now();
    this.output.setAttribute("aria-busy", "true");
    this.say("Waiting for the first token …");
  }

  /** Add an event of the stream. */
  add(event) {
    for (const choice of event.choices) {
      this.content += choice.text ?? choice.delta?.content ?? "";
      this.tokenIds.push(...(choice.token_ids ?? []));
      this.#show(choice);
      this.#count(choice.draft_counts);
      this.ending = choice.finish_reason ?? this.ending;
    }
    if (event.usage) this.cells.tokens.textContent = String(event.usage.completion_tokens);
  }

  /** End: by itself, because it was stopped, or with an error. */
  end(state, error = "") {
    this.state = state;
    this.output.setAttribute("aria-busy", "false");
    const texts = { ended: ENDINGS[this.ending] ?? "Ended.", stopped: "Stopped.", failed: error };
    this.say(texts[state], state === "failed");
  }

  #show(choice) {
    const text = choice.text ?? choice.delta?.content ?? "";
    for (const span of choice.draft_spans ?? (text ? [{ text, is_accepted: false }] : [])) {
      this.text += span.text;
      if (span.rejected) this.output.append(element("del", { class: "rejected" }, visible(span.rejected)));
      const kind = span.is_accepted ? "accepted" : "written";
      const last = this.output.lastElementChild;
      if (last?.className === kind) last.textContent += span.text;
      else if (span.text) this.output.append(element("span", { class: kind }, span.text));
    }
  }

  #count(counts) {
    if (!counts?.num_tokens) return;
    const now = performance.now();
    if (!this.rounds) {
      this.cells.first.textContent = `${Math.round(now - this.sentAt)} ms`;
      this.say("Writing …");
    }
    this.rounds += 1;
    this.counts.tokens += counts.num_tokens;
    this.counts.drafted += counts.num_draft_tokens;
    this.counts.accepted += counts.num_accepted_tokens;
    this.cells.tokens.textContent = String(this.counts.tokens);
    this.cells.round.textContent = (this.counts.tokens / this.rounds).toFixed(2);
    if (this.counts.drafted) this.cells.rate.textContent = `${((100 * this.counts.accepted) / this.counts.drafted).toFixed(1)} %`;
    this.cells.speed.textContent = (this.counts.tokens / Math.max(0.001, (now - this.sentAt) / 1000)).toFixed(1);
  }
}
