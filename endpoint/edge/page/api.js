// Requests to the endpoint, and the events of a streamed answer. The key goes into a header and nowhere else.

const HINTS = {
  context_length_exceeded: "Start a new chat, or ask for fewer tokens.",
  server_busy: "Try again in a moment.",
  model_unavailable: "Try again in a moment.",
  not_ready: "Try again in a moment.",
};

/** An answer that is an error, with the code that the API gives it. */
export class ApiError extends Error {
  constructor(message, code = "") {
    super(HINTS[code] ? `${message} ${HINTS[code]}` : message);
    this.code = code;
  }
}

/** Return the response to a request. Throws ApiError for an error, TypeError if there is no server. */
export async function call(path, key, options = {}) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let error = { message: `The server answered ${response.status}.` };
  try {
    error = (await response.json()).error ?? error;
  } catch {
    // not in the form of an API error: a proxy between us answered
  }
  throw new ApiError(error.message, error.code);
}

/** Yield the JSON objects of a stream of server-sent events; throws if it ends without [DONE]. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError("The answer broke off.");
    unread += value;
    const blocks = unread.split(/\r?\n\r?\n/);
    unread = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (!lines.length) continue; // a comment, to keep the connection open
      const data = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, event.error.code);
      yield event;
    }
  }
}

/** Return what to tell a person about an error. */
export function told(error) {
  return error instanceof TypeError ? "The server cannot be reached. Is it still running?" : error.message;
}
