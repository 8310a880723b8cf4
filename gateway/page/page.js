// Reads the form, streams answers into panels, and compares them with the baseline.

import { ApiError, get, stream } from "./api.js";
import { Panel } from "./panel.js";

const at = (id) => document.getElementById(id);
const [answers, form, note, promptBox] = ["answers", "form", "note", "prompt"].map(at);
let messages = []; // messages of the chat so far
let running = null; // aborts the current answers

const mode = () => form.elements.mode.value;
const key = () => at("key").value;

function showStatus(text, wrong = false) {
  note.textContent = text;
  note.classList.toggle("wrong", wrong);
}

// Fields of a request. An empty control omits its field, so the default applies.
function fields() {
  const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  const length = at("draft-length").value;
  return {
    model: at("model").value || undefined,
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    top_p: number("top-p"),
    top_k: number("top-k"),
    seed: number("seed"),
    drafter: at("drafter").value || undefined,
    prediction: at("prediction").value ? { type: "content", content: at("prediction").value } : undefined,
    num_draft_tokens: length === "" ? undefined : length === "auto" ? length : Number(length),
    stream: true,
    stream_options: { include_usage: true },
    return_token_details: true,
    response_format: schema() && { type: "json_schema", json_schema: { name: "answer", schema: schema() } },
  };
}

// The JSON schema of the answer; undefined if there is none.
function schema() {
  const text = at("schema").value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(`The JSON schema is not valid JSON: ${error.message}`);
  }
}

async function answer(panel, body, signal) {
  const path = body.messages ? "/v1/chat/completions" : "/v1/completions";
  panel.element.setAttribute("aria-busy", "true");
  panel.began = performance.now();
  panel.showStatistics();
  try {
    for await (const chunk of stream(path, body, key(), signal)) panel.add(chunk);
  } finally {
    panel.end();
  }
}

function say(text) {
  const said = document.createElement("p");
  said.className = "said";
  said.textContent = text;
  answers.append(said);
}

function panelsFor(titles) {
  const row = document.createElement("div");
  row.className = "panels";
  const showRound = (text) => { at("round").textContent = text; };
  const panels = titles.map((title) => new Panel(title, showRound));
  row.append(...panels.map((panel) => panel.element));
  answers.append(row);
  row.scrollIntoView({ block: "nearest" });
  return [row, panels];
}

// Sequential, because concurrent requests would slow each other down.
async function compare(body, signal) {
  const seeded = { ...body, seed: body.seed ?? Math.floor(Math.random() * 2 ** 31) };
  const [row, [drafted, baseline]] = panelsFor(["With drafts", "Baseline"]);
  await answer(drafted, seeded, signal);
  const alone = { ...seeded, drafter: "none", num_draft_tokens: undefined };
  await answer(baseline, alone, signal);
  const verdict = document.createElement("p");
  verdict.className = "verdict";
  const ratio = (drafted.speed / baseline.speed).toFixed(2);
  verdict.textContent = `${difference(drafted.said, baseline.said)} Speedup with drafts: ${ratio}x.`;
  row.append(verdict);
  return drafted;
}

function difference(one, other) {
  if (one === other) return "The answers are identical.";
  let place = 0;
  while (one[place] === other[place]) place += 1;
  return `The answers differ from character ${place + 1}.`;
}

async function send() {
  at("send").disabled = true;
  await connected; // the form depends on the server
  const text = promptBox.value;
  const chat = mode() === "chat";
  const asked = [...messages, { role: "user", content: text }];
  running = new AbortController();
  at("stop").disabled = false;
  showStatus("Answering…");
  try {
    const body = { ...fields(), ...(chat ? { messages: asked } : { prompt: text }) };
    say(text);
    let panel;
    if (at("compare").checked) {
      panel = await compare(body, running.signal);
    } else {
      let row;
      [row, [panel]] = panelsFor(["Answer"]);
      await answer(panel, body, running.signal);
    }
    if (chat) messages = [...asked, { role: "assistant", content: panel.said }];
    if (chat) promptBox.value = "";
    showStatus(`${panel.numTokens} tokens in ${panel.seconds.toFixed(1)} s; finish reason: ${panel.finishReason}.`);
  } catch (error) {
    if (error.name === "AbortError") showStatus("Stopped.");
    else showStatus(error instanceof ApiError ? error.message : `Can't reach the gateway: ${error.message}`, true);
  } finally {
    running = null;
    at("send").disabled = false;
    at("stop").disabled = true;
    promptBox.focus();
  }
}

async function connect() {
  try {
    const [models, tokenizer] = await Promise.all([get("/v1/models", key()), get("/tokenizer_info", key())]);
    at("model").replaceChildren(...models.data.map((model) => new Option(model.id)));
    const [first] = at("drafter").options; // the default
    at("drafter").replaceChildren(first, ...models.data[0].drafters.map((name) => new Option(name)));
    const room = models.data[0].max_model_len;
    at("max-tokens").max = room;
    at("max-tokens").value = Math.min(Number(at("max-tokens").value), Math.floor(room / 2));
    at("server").textContent = `Context length: ${room} tokens`;
    at("server").classList.remove("wrong");
    const [chat, completion] = form.elements.mode;
    chat.disabled = !tokenizer.chat_template;
    if (chat.disabled) {
      completion.checked = true;
      showStatus("This model has no chat template, so it only completes text.");
    }
  } catch (error) {
    at("server").textContent = error.message;
    at("server").classList.add("wrong");
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!at("send").disabled) send();
});
promptBox.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  answers.replaceChildren();
  at("round").textContent = "";
  showStatus("");
  promptBox.focus();
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem("tandem-key", key());
  connected = connect();
});
at("key").value = sessionStorage.getItem("tandem-key") ?? "";
let connected = connect();
