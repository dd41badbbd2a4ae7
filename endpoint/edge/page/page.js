// The page's behaviour: settings, requests one after another, and what is said of them.

import { call, events, told } from "./api.js";
import { Conversation, Turn } from "./conversation.js";
import { byId, element } from "./dom.js";

const GENERAL_EXAMPLES = [
  "Tell me a story about a raven and a lighthouse.",
  "Explain in three sentences how a rainbow comes about.",
  "Write a Python function that counts the words of a text.",
  "List ten things to pack for a week at the sea.",
];
const SIDES = { both: [true, false], with: [true], without: [false] };
const form = byId("ask");
const conversation = new Conversation();
let model = null; // as /v1/models describes it
let running = null; // the AbortController of the answers that are being written

const key = () => byId("key").value.trim();

function say(text, isWrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", isWrong);
}

/** Learn what the server has, and show it; what it cannot do cannot be chosen. */
async function learnModel(signal) {
  const { data } = await (await call("v1/models", key(), { signal })).json();
  if (!data.length) throw new Error("The server has no model.");
  model = data[choice(data.map((each) => each.id))];
  byId("model").textContent = model.id;
  byId("warning").textContent = model.warning ?? "";
  byId("warning").hidden = !model.warning;
  byId("no-choice").hidden = model.controls_drafts;
  for (const radio of document.querySelectorAll("[name=sides]")) {
    radio.disabled = !model.controls_drafts && radio.value !== "with";
    if (!model.controls_drafts) radio.checked = radio.value === "with";
  }
}

/** Offer these models where there are several, and return the index of the one that is chosen. */
function choice(names) {
  const select = byId("model-choice");
  const chosen = select.value;
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : names[0];
  }
  byId("model-field").hidden = names.length < 2;
  return select.selectedIndex;
}

/** Return where a turn is asked, and the body that its answers share. */
function question(turn) {
  return {
    path: turn.isChat ? "v1/chat/completions" : "v1/completions",
    body: {
      model: model.id,
      ...(turn.isChat ? { messages: conversation.messages(turn.prompt) } : { prompt: turn.prompt }),
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      seed: byId("seed").valueAsNumber,
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
      include_draft_spans: true,
    },
  };
}

/** Let the server write an answer, and show it as it comes. */
async function write(answer, { path, body }, signal) {
  const about = answer.drafts ? { include_rejected_drafts: true } : { num_speculative_tokens: 0 };
  answer.begin();
  conversation.follow(answer);
  try {
    const own = model.controls_drafts ? about : {};
    const response = await call(path, key(), { method: "POST", body: JSON.stringify({ ...body, ...own }), signal });
    for await (const event of events(response.body)) {
      answer.add(event);
      conversation.follow(answer);
    }
    answer.end("ended");
  } catch (error) {
    answer.end(signal.aborted ? "stopped" : "failed", told(error));
  }
  conversation.follow(answer);
}

/** Write the answers of a new turn one after another, so that neither takes time from the other. */
async function answerPrompt() {
  const { signal } = setRunning(new AbortController());
  const prompt = byId("prompt").value;
  say("Asking the server …");
  try {
    await learnModel(signal);
  } catch (error) {
    say(signal.aborted ? "Stopped." : told(error), !signal.aborted);
    if (["missing_api_key", "invalid_api_key"].includes(error.code)) askForKey();
    setRunning(null);
    return;
  }
  const sides = SIDES[form.elements.sides.value];
  const turn = new Turn(prompt, byId("kind").value === "chat", sides);
  const asked = question(turn);
  conversation.add(turn);
  byId("prompt").value = "";
  for (const answer of turn.answers.slice(1)) answer.say("It is written after the other one, so that neither takes time from the other.");
  for (const answer of turn.answers) {
    if (signal.aborted || turn.answers.some((each) => each.state === "failed")) {
      answer.say("It was not written.");
      continue;
    }
    say(`Writing ${answer.drafts ? "with" : "without"} the draft …`);
    await write(answer, asked, signal);
  }
  const failed = turn.answers.find((answer) => answer.state === "failed");
  const last = turn.answers.findLast((answer) => answer.state !== "waiting") ?? turn.answers[0];
  const [outcome, verdict] = turn.judge(model.exact);
  conversation.follow(last);
  const isWrong = outcome === "differs" || Boolean(failed);
  say(outcome === "differs" ? verdict : (failed?.note.textContent ?? (verdict || last.note.textContent)), isWrong);
  if (!turn.reply && !byId("prompt").value) byId("prompt").value = prompt; // nothing was written: it can be sent again
  setRunning(null);
}

function setRunning(controller) {
  running = controller;
  byId("send").disabled = controller !== null;
  byId("stop").disabled = controller === null;
  byId("new-chat").disabled = byId("model-choice").disabled = controller !== null;
  return controller ?? {};
}

function askForKey() {
  byId("key-field").hidden = false;
  byId("settings").open = true;
  byId("key").focus();
}

function send(prompt) {
  if (prompt !== undefined) byId("prompt").value = prompt;
  if (!running && byId("prompt").value.trim()) form.requestSubmit();
}

/** Learn what the page is told before any key is typed, and show the examples. */
async function begin() {
  let page = { needs_key: true, examples: [] };
  try {
    page = await (await call("page/page.json")).json();
  } catch {
    // the first prompt will say why
  }
  for (const prompt of page.examples.length ? page.examples : GENERAL_EXAMPLES) {
    const button = element("button", { type: "button" }, prompt);
    button.addEventListener("click", () => {
      byId("kind").value = "chat";
      send(prompt);
    });
    byId("examples").append(element("li", {}, button));
  }
  byId("key-field").hidden = !page.needs_key;
  document.body.dataset.isReady = "true";
  if (!page.needs_key) await learnModel().catch(() => {}); // the first prompt will say why
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) answerPrompt();
});
document.addEventListener("invalid", () => (byId("settings").open = true), true); // a wrong field must be seen
byId("stop").addEventListener("click", () => running?.abort());
byId("new-seed").addEventListener("click", () => (byId("seed").value = String(Math.floor(Math.random() * 1e6))));
byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  say("");
  byId("prompt").focus();
});
byId("show-rejected").addEventListener("change", (event) => {
  document.body.classList.toggle("without-rejected", !event.target.checked);
});
byId("model-choice").addEventListener("change", () => learnModel().catch((error) => say(told(error), true)));
byId("kind").addEventListener("change", (event) => {
  byId("prompt").placeholder = event.target.value === "chat" ? "Write a message" : "Begin a text";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key !== "Enter" || event.isComposing) return;
  if (event.ctrlKey || event.metaKey || (event.target === byId("prompt") && !event.shiftKey)) {
    event.preventDefault();
    send();
  }
});
const isWide = matchMedia("(min-width: 60rem)");
const openSettings = () => (byId("settings").open = isWide.matches);
isWide.addEventListener("change", openSettings);
openSettings();
window.addEventListener("pagehide", () => {
  running?.abort();
  byId("key").value = "";
});
begin();
