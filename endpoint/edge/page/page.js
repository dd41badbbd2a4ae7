// The page's behaviour: send a prompt, show the text as it comes, and say how the drafts fare.
// The key is in its input field and in the header of a request, and nowhere else.

const byId = (id) => document.getElementById(id);
const form = byId("ask");
const output = byId("output");
let running = null; // the AbortController of the answer that is being written

/** The JSON objects of a stream of server-sent events; throws if it ends without [DONE]. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    unread += value;
    const blocks = unread.split(/\r?\n\r?\n/);
    unread = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (!lines.length) continue; // a comment, to keep the connection open
      const data = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function call(path, options = {}) {
  const headers = { "content-type": "application/json" };
  const key = byId("key").value.trim();
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not in the form of an API error: a proxy between us answered
  }
  throw new Error(message);
}

async function modelName(signal) {
  const { data } = await (await call("v1/models", { signal })).json();
  if (!data.length) throw new Error("The server has no model.");
  byId("model").textContent = data[0].id;
  byId("warning").textContent = data[0].warning ?? "";
  byId("warning").hidden = !data[0].warning;
  return data[0].id;
}

function question(model) {
  const prompt = byId("prompt").value;
  const isChat = byId("kind").value === "chat";
  return {
    path: isChat ? "v1/chat/completions" : "v1/completions",
    body: {
      model,
      ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      stream: true,
      stream_options: { include_usage: true },
      include_draft_spans: true,
    },
  };
}

function show(choice) {
  const text = choice.text ?? choice.delta?.content ?? "";
  const spans = choice.draft_spans ?? (text ? [{ text, is_accepted: false }] : []);
  const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
  for (const span of spans) {
    const last = output.lastElementChild;
    const kind = span.is_accepted ? "drafted" : "written";
    if (last?.className === kind) {
      last.textContent += span.text;
    } else {
      const piece = document.createElement("span");
      piece.className = kind;
      piece.textContent = span.text;
      output.append(piece);
    }
  }
  if (isAtEnd) output.scrollTop = output.scrollHeight;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Counts so far, shown as they come; `exact` are those of the whole answer, from its last chunk. */
function numbers() {
  const started = performance.now();
  const counts = { tokens: 0, drafted: 0, accepted: 0, drafts: 0 };
  const showRates = (rate, length) => {
    byId("acceptance-rate").textContent = rate === null ? "–" : percent(rate);
    byId("acceptance-length").textContent = length === null ? "–" : length.toFixed(2);
  };
  const showTokens = (tokens) => {
    byId("tokens").textContent = String(tokens);
    byId("speed").textContent = (tokens / Math.max(0.001, (performance.now() - started) / 1000)).toFixed(1);
  };
  return {
    add(chunk) {
      if (!chunk) return;
      counts.tokens += chunk.num_tokens;
      counts.drafted += chunk.num_draft_tokens;
      counts.accepted += chunk.num_accepted_tokens;
      counts.drafts += chunk.num_draft_tokens > 0 ? 1 : 0;
      showTokens(counts.tokens);
      if (counts.drafted) showRates(counts.accepted / counts.drafted, 1 + counts.accepted / counts.drafts);
    },
    exact(event) {
      if (event.usage) showTokens(event.usage.completion_tokens);
      const drafts = event.metrics?.speculative_decoding;
      if (drafts) showRates(drafts.draft_acceptance_rate, drafts.mean_acceptance_length);
    },
  };
}

function say(text, isWrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", isWrong);
}

function setRunning(controller) {
  running = controller;
  byId("send").disabled = controller !== null;
  byId("stop").disabled = controller === null;
  output.setAttribute("aria-busy", String(controller !== null));
}

async function write() {
  const controller = new AbortController();
  const { signal } = controller;
  setRunning(controller);
  output.replaceChildren();
  for (const id of ["acceptance-rate", "acceptance-length", "speed", "tokens"]) byId(id).textContent = "–";
  say("Waiting for the first token …");
  let ending = "";
  try {
    const { path, body } = question(await modelName(signal));
    const counted = numbers();
    const response = await call(path, { method: "POST", body: JSON.stringify(body), signal });
    for await (const event of events(response.body)) {
      for (const choice of event.choices) {
        say("Writing …");
        show(choice);
        counted.add(choice.draft_counts);
        ending = choice.finish_reason ?? ending;
      }
      counted.exact(event);
    }
    say(ending === "length" ? "Ended at the limit of tokens." : "Ended by itself.");
  } catch (error) {
    if (signal.aborted) say("Stopped.");
    else say(error instanceof TypeError ? "The server cannot be reached." : error.message, true);
  } finally {
    setRunning(null);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) write();
});
byId("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
window.addEventListener("pagehide", () => {
  running?.abort();
  byId("key").value = "";
});
