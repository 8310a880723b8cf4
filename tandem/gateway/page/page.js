// Shows chats, sends prompts, and compares answers with the baseline.

import { add, count, newAnswer, speed } from "./answer.js";
import { ApiError, get, post, stream } from "./api.js";
import { CHAT, COMPLETION } from "./examples.js";
import { Panel, copyButton, element } from "./panel.js";
import * as storage from "./storage.js";

const at = (id) => document.getElementById(id);
const [form, note, promptBox, turns] = ["form", "note", "prompt", "turns"].map(at);
const SETTINGS = ["system", "mode", "model", "max-tokens", "temperature", "top-p", "top-k", "seed", "drafter", "draft-length", "prediction", "schema"];
const OF_ONE_CHAT = ["prediction", "schema"];
const DEFAULT_COMPLETION = 256; // tokens; the gateway's default is 16
const SAVE_EVERY = 1000; // milliseconds

let chat; // the shown one
let shown = new Map(); // answers of the shown chat -> panels
let running = null; // {chat, abort}
let leaving = false; // the browser is closing the page, and with it the connection
let models = [];
let chats = true; // whether the model has a chat template

const key = () => at("key").value;

function say(text, wrong = false) {
  note.textContent = text;
  note.classList.toggle("wrong", wrong);
}

// ---- Settings

const settings = () => Object.fromEntries(SETTINGS.map((id) => [id, at(id).value]));

function showSettings(values) {
  for (const id of SETTINGS) {
    at(id).value = values[id] ?? "";
    if (at(id).tagName === "SELECT" && at(id).selectedIndex < 0) at(id).selectedIndex = 0;
  }
  showExtras();
}

// Name the settings that change every answer, next to the prompt.
function showExtras() {
  const set = [["schema", "JSON schema"], ["prediction", "predicted output"], ["system", "system prompt"]];
  const names = set.filter(([id]) => at(id).value.trim()).map(([, name]) => name);
  at("extras").hidden = !names.length;
  at("extras").textContent = `With ${names.join(", ")}`;
}

const isCompletion = () => !chats || at("mode").value === "completion";

function parsedSchema(text) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(`The JSON schema is not valid JSON: ${error.message}`);
  }
}

// Fields of a request. An empty control omits its field, so the default applies.
function fields(values) {
  const number = (id) => (values[id] === "" ? undefined : Number(values[id]));
  const schema = parsedSchema(values.schema);
  return {
    model: values.model || undefined,
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    top_p: number("top-p"),
    top_k: number("top-k"),
    seed: number("seed"),
    drafter: values.drafter || undefined,
    prediction: values.prediction ? { type: "content", content: values.prediction } : undefined,
    num_draft_tokens: values["draft-length"] === "auto" ? "auto" : number("draft-length"),
    stream: true,
    stream_options: { include_usage: true },
    return_token_details: true,
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema } },
  };
}

// The messages before a turn, and its prompt.
function messagesTo(of, turn) {
  const messages = [];
  for (let next = turn.parent; next >= 0; next = of.turns[next].parent) {
    const before = of.turns[next];
    if (!storage.inContext(before)) continue;
    messages.unshift({ role: "user", content: before.prompt }, { role: "assistant", content: before.answer.text });
  }
  if (of.settings.system.trim()) messages.unshift({ role: "system", content: of.settings.system });
  return [...messages, { role: "user", content: turn.prompt }];
}

function bodyOf(of, turn) {
  const body = fields(of.settings);
  if (!turn.completes) return { ...body, messages: messagesTo(of, turn) };
  const most = Math.min(DEFAULT_COMPLETION, Math.floor((models[0]?.max_model_len ?? Infinity) / 2));
  return { ...body, prompt: turn.prompt, max_tokens: body.max_tokens ?? most };
}

// ---- Chats

function keep(saved) {
  if (!storage.saveChat(saved)) say("The browser doesn't store this chat: its storage is full or turned off. Export the chat to keep it.", true);
}

function showList() {
  const items = storage.allChats().map((one) => {
    const link = element("a", { href: `#${one.id}`, textContent: one.title });
    const item = element("li", {}, link);
    if (one.id !== chat.id) return item;
    link.setAttribute("aria-current", "page");
    const action = (name, act) => {
      const button = element("button", { type: "button", className: "small", textContent: name });
      button.addEventListener("click", act);
      return button;
    };
    item.append(element("div", { className: "actions" }, action("Rename", rename), action("Export", exportChat), action("Delete", remove)));
    return item;
  });
  at("chat-list").replaceChildren(...items);
}

function rename() {
  const title = prompt("Title of the chat", chat.title)?.trim();
  if (!title) return;
  chat.title = title;
  keep(chat);
  showList();
}

function exportChat() {
  const url = URL.createObjectURL(new Blob([storage.asMarkdown(chat)], { type: "text/markdown" }));
  element("a", { href: url, download: `${chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50)}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function remove() {
  if (!confirm(`Delete the chat “${chat.title}”?`)) return;
  if (running?.chat === chat) running.abort.abort();
  chat.deleted = true;
  storage.deleteChat(chat.id);
  open("");
}

// Show a chat; "": a new one.
function open(id) {
  const found = running?.chat.id === id ? running.chat : id && storage.readChat(id);
  const inherited = storage.read("tandem-settings", defaults);
  chat = found || storage.newChat({ ...defaults, ...inherited });
  for (const turn of chat.turns) {
    for (const answer of [turn.answer, turn.baseline]) {
      if (answer?.finish === null && !answer.error && running?.chat !== chat) answer.finish = "interrupted";
    }
  }
  history.replaceState(null, "", found ? `#${chat.id}` : location.pathname);
  showSettings(chat.settings);
  promptBox.value = storage.unsent(found ? chat.id : "new");
  document.body.classList.remove("listing");
  at("show-chats").setAttribute("aria-expanded", "false");
  showList();
  showTurns();
  showRunning();
  say("");
  at("answers").scrollTop = at("answers").scrollHeight;
  promptBox.focus();
}

// ---- Turns

function panelFor(answer, title, turn, alone) {
  const plain = Boolean(turn.completes || turn.plain);
  const panel = new Panel(answer, title, { plain, alone, keys: "answer-keys" });
  shown.set(answer, panel);
  return panel.element;
}

function showTurns() {
  shown = new Map();
  const path = storage.path(chat);
  turns.replaceChildren(...path.map((index) => turnElement(index)));
  at("examples").hidden = path.length > 0;
  at("form").classList.toggle("started", path.length > 0);
  showLegend();
  countContext();
}

function turnElement(index) {
  const turn = chat.turns[index];
  const said = element("div", { className: "said", textContent: turn.prompt, tabIndex: 0, role: "group", "aria-label": "Prompt" });
  const edit = element("button", { type: "button", className: "small", textContent: "Edit" });
  const actions = element("div", { className: "actions" }, edit, copyButton("Copy prompt", () => turn.prompt));
  edit.addEventListener("click", () => startEdit(index, said, actions));
  const versions = storage.versions(chat, index);
  if (versions.length > 1) actions.append(versionButtons(versions, versions.indexOf(index)));
  const panels = element("div", { className: "panels" });
  if (turn.baseline) panels.append(element("div", { className: "verdict" }));
  panels.append(panelFor(turn.answer, turn.baseline ? "With drafts" : "Answer", turn, !turn.baseline));
  if (turn.baseline) panels.append(panelFor(turn.baseline, "Without drafts", turn, false));
  const again = element("button", { type: "button", className: "small", textContent: "Regenerate" });
  again.addEventListener("click", () => ask({ ...turn, parent: turn.parent }, Boolean(turn.baseline)));
  const below = element("div", { className: "actions" }, copyButton("Copy answer", () => turn.answer.text), again);
  const made = element("article", { className: "turn", "aria-label": `Turn ${storage.path(chat).indexOf(index) + 1}` }, said, actions, panels, below);
  made.dataset.turn = index;
  showVerdict(made, turn);
  return made;
}

function versionButtons(versions, place) {
  const go = (label, to) => {
    const button = element("button", { type: "button", className: "small", textContent: label === "Previous version" ? "‹" : "›", "aria-label": label, disabled: to === undefined });
    button.addEventListener("click", () => {
      storage.show(chat, to);
      keep(chat);
      showTurns();
    });
    return button;
  };
  return element(
    "span", { className: "versions" }, go("Previous version", versions[place - 1]),
    `${place + 1}/${versions.length}`, go("Next version", versions[place + 1]),
  );
}

function startEdit(index, said, actions) {
  const turn = chat.turns[index];
  const box = element("textarea", { value: turn.prompt, rows: 4, "aria-label": "Edited prompt" });
  const send = element("button", { type: "button", textContent: "Send edited prompt" });
  const cancel = element("button", { type: "button", textContent: "Cancel" });
  const editor = element("div", { className: "said editor" }, box, element("div", { className: "row" }, send, cancel));
  const end = () => { editor.replaceWith(said); actions.hidden = false; };
  const submit = () => {
    if (running) say("An answer is running. Stop it to send the edited prompt.");
    else if (box.value.trim()) ask({ ...turn, prompt: box.value }, Boolean(turn.baseline));
  };
  send.addEventListener("click", submit);
  cancel.addEventListener("click", end);
  box.addEventListener("keydown", (event) => {
    if (isSend(event)) { event.preventDefault(); submit(); }
    if (event.key === "Escape") { event.stopPropagation(); end(); }
  });
  said.replaceWith(editor);
  actions.hidden = true;
  box.focus();
}

function showVerdict(made, turn) {
  const box = made.querySelector(".verdict");
  const [drafted, baseline] = [speed(turn.answer), turn.baseline && speed(turn.baseline)];
  if (!box || !drafted || !baseline || turn.baseline.finish === null) return;
  const ratio = drafted / baseline;
  const words = ratio >= 1 ? "faster with drafts" : "the speed with drafts";
  box.replaceChildren(
    element("p", { className: "ratio" }, element("strong", { textContent: `${ratio.toFixed(2)}x` }), ` ${words}`),
    element("p", { textContent: `${drafted.toFixed(1)} instead of ${baseline.toFixed(1)} tokens/s. ${difference(turn.answer.text, turn.baseline.text)}` }),
  );
}

function difference(one, other) {
  if (one === other) return "The answers are identical.";
  let place = 0;
  while (one[place] === other[place]) place += 1;
  return `The answers differ from character ${place + 1}.`;
}

function showLegend() {
  const answers = [...shown.keys()];
  at("legend").hidden = !answers.length;
  for (const item of at("legend").children) {
    const kind = item.firstElementChild.classList[1];
    item.hidden = !["accepted", "correction"].includes(kind) && !answers.some((answer) => count(answer, kind));
  }
}

// Show the number of tokens in the context, as the model's tokenizer counts them.
async function countContext() {
  const counted = chat;
  const total = models[0]?.max_model_len;
  const path = storage.path(chat);
  const last = chat.turns[path.at(-1)];
  if (!last || !total) {
    at("context").textContent = total ? `Context: ${total.toLocaleString("en")} tokens` : "";
    return;
  }
  let body;
  if (last.completes) body = { prompt: last.prompt + last.answer.text };
  else {
    const messages = messagesTo(chat, last);
    if (storage.inContext(last)) messages.push({ role: "assistant", content: last.answer.text });
    body = { messages, add_generation_prompt: false };
  }
  try {
    const { count: used } = await post("/tokenize", body, key());
    if (chat === counted) at("context").textContent = `Context: ${used.toLocaleString("en")} of ${total.toLocaleString("en")} tokens`;
  } catch { /* the next request reports what is wrong */ }
}

// ---- Requests

function showRunning() {
  const here = running?.chat === chat;
  at("send").hidden = Boolean(running);
  at("stop").hidden = !running;
  if (running) say(here ? "Answering…" : "Another chat is being answered.");
}

async function answer(of, turn, into, body, signal) {
  const path = body.messages ? "/v1/chat/completions" : "/v1/completions";
  const began = performance.now();
  let saved = began;
  shown.get(into)?.draw();
  try {
    for await (const chunk of stream(path, body, key(), signal)) {
      add(into, chunk, (performance.now() - began) / 1000);
      shown.get(into)?.update();
      if (performance.now() - saved > SAVE_EVERY && !of.deleted) {
        saved = performance.now();
        keep(of);
      }
    }
    into.finish ??= "stop";
  } catch (error) {
    if (leaving) into.finish = "interrupted";
    else if (error.name === "AbortError") into.finish = "stopped";
    else into.error = error instanceof ApiError ? error.message : `Can't reach the gateway: ${error.message}`;
    throw error;
  } finally {
    shown.get(into)?.draw();
  }
}

// Add a turn to the shown chat and answer it.
async function ask({ parent, prompt, completes, plain }, compares) {
  if (running) {
    say("An answer is running. Esc stops it.");
    return false;
  }
  const own = chat;
  own.settings = settings();
  try {
    parsedSchema(own.settings.schema);
  } catch (error) {
    say(error.message, true);
    return false;
  }
  running = { chat: own, abort: new AbortController() };
  showRunning();
  await connected; // the form depends on the server
  const turn = { parent, prompt, completes: completes ?? isCompletion(), plain: plain ?? Boolean(own.settings.schema.trim()), answer: newAnswer(), baseline: null };
  if (compares) turn.baseline = newAnswer();
  own.turns.push(turn);
  own.leaf = own.turns.length - 1;
  own.title ||= prompt.trim().replace(/\s+/g, " ").slice(0, 60);
  own.used = Date.now();
  keep(own);
  if (chat === own) {
    history.replaceState(null, "", `#${own.id}`);
    showList();
    showTurns();
    at("answers").scrollTop = at("answers").scrollHeight;
  }
  const { signal } = running.abort;
  let words = "";
  try {
    const body = bodyOf(own, turn);
    if (compares) body.seed ??= Math.floor(Math.random() * 2 ** 31);
    await answer(own, turn, turn.answer, body, signal);
    // Sequential, because concurrent requests would slow each other down.
    if (compares) await answer(own, turn, turn.baseline, { ...body, drafter: "none", num_draft_tokens: undefined }, signal);
    words = `Complete: ${turn.answer.tokens.length} tokens.`;
    if (own.turns.some((other) => other !== turn && other.parent === parent && other.prompt === prompt) && Number(own.settings.temperature) === 0) {
      words += " At temperature 0, an answer repeats itself; Settings can raise it.";
    }
    at("announcer").textContent = turn.answer.text.slice(0, 1000);
  } catch (error) {
    if (turn.baseline && turn.baseline.finish === null && !turn.baseline.error) turn.baseline = null;
    words = turn.answer.error ?? turn.baseline?.error ?? "Stopped.";
  } finally {
    running = null;
    if (!own.deleted) keep(own);
    if (chat === own) {
      const old = turns.querySelector(`[data-turn="${own.turns.indexOf(turn)}"]`);
      if (old) old.replaceWith(turnElement(own.turns.indexOf(turn)));
      showLegend();
      countContext();
    }
    showRunning();
    say(words, Boolean(turn.answer.error ?? turn.baseline?.error));
  }
  return true;
}

async function send() {
  const text = promptBox.value;
  if (!text.trim()) return;
  if (running) {
    say("An answer is running. Esc stops it.");
    return;
  }
  const own = chat;
  const asking = ask({ parent: chat.leaf, prompt: text }, at("compare").checked);
  if (running) {
    promptBox.value = "";
    storage.keepUnsent(own.turns.length ? own.id : "new", "");
  }
  await asking;
}

function showExamples() {
  at("example-list").replaceChildren(...(chats ? CHAT : COMPLETION).map((example) => {
    const button = element("button", { type: "button" }, element("strong", { textContent: example.title }), element("span", { textContent: example.why }));
    button.addEventListener("click", () => {
      at("schema").value = example.schema ? JSON.stringify(example.schema) : "";
      showExtras();
      ask({ parent: -1, prompt: example.prompt }, true);
    });
    return element("li", {}, button);
  }));
}

async function connect() {
  try {
    const [served, tokenizer] = await Promise.all([get("/v1/models", key()), get("/tokenizer_info", key())]);
    models = served.data;
    chats = Boolean(tokenizer.chat_template);
    const [first, ...others] = models;
    const adapters = others.filter((model) => model.parent);
    at("model").replaceChildren(new Option("none", ""), ...adapters.map((model) => new Option(model.id)));
    at("model-label").hidden = !adapters.length;
    const [usual] = at("drafter").options;
    at("drafter").replaceChildren(usual, ...first.drafters.map((name) => new Option(name)));
    at("max-tokens").max = first.max_model_len;
    at("server").textContent = first.root;
    at("server").classList.remove("wrong");
    document.title = `${first.root} · Tandem`;
    at("mode").disabled = at("system").disabled = !chats;
    at("welcome").textContent = chats
      ? "Ask something, or try an example. Each one runs with and without drafts."
      : "This model has no chat template, so it continues your text. Each prompt is on its own.";
    showSettings(chat.settings);
    showExamples();
    countContext();
  } catch (error) {
    at("server").textContent = error.message;
    at("server").classList.add("wrong");
  }
}

// ---- Events

const touches = matchMedia("(pointer: coarse)").matches; // no Shift key, so Enter starts a line
const isSend = (event) => event.key === "Enter" && !event.isComposing
  && (event.ctrlKey || event.metaKey || !(event.shiftKey || touches));
if (touches) at("keys").textContent = "";

form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
promptBox.addEventListener("keydown", (event) => {
  if (isSend(event)) { event.preventDefault(); send(); }
});
promptBox.addEventListener("input", () => storage.keepUnsent(chat.turns.length ? chat.id : "new", promptBox.value));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !at("settings").open) running?.abort.abort();
});
at("stop").addEventListener("click", () => { running?.abort.abort(); promptBox.focus(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); promptBox.focus(); });
at("new").addEventListener("click", () => open(""));
at("show-chats").addEventListener("click", () => {
  const listing = document.body.classList.toggle("listing");
  at("show-chats").setAttribute("aria-expanded", listing);
});
at("chat-list").addEventListener("click", (event) => {
  const id = event.target.closest("a")?.hash.slice(1);
  if (id) { event.preventDefault(); open(id); }
});
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id !== chat.id) open(id);
});
addEventListener("storage", (event) => { if (event.key?.startsWith("tandem-chat-")) showList(); });
addEventListener("pagehide", () => {
  leaving = true;
  if (running && !running.chat.deleted) keep(running.chat);
});
addEventListener("pageshow", () => { leaving = false; });
for (const button of ["show-settings", "extras"]) at(button).addEventListener("click", () => at("settings").showModal());
at("settings-form").addEventListener("input", () => {
  chat.settings = settings();
  if (chat.turns.length) keep(chat);
  const inherited = Object.entries(chat.settings).filter(([id]) => !OF_ONE_CHAT.includes(id));
  storage.write("tandem-settings", Object.fromEntries(inherited));
  showExtras();
});
at("settings").addEventListener("close", () => promptBox.focus());
at("colors").addEventListener("change", () => {
  storage.write("tandem-colors", at("colors").checked);
  document.body.classList.toggle("uncolored", !at("colors").checked);
});
turns.addEventListener("drawn", () => {
  const box = at("answers");
  showLegend();
  if (follows) box.scrollTop = box.scrollHeight;
});
let follows = true; // the user sees the end of the conversation
at("answers").addEventListener("scroll", () => {
  const box = at("answers");
  follows = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem("tandem-key", key());
  connected = connect();
});

const defaults = settings();
at("key").value = sessionStorage.getItem("tandem-key") ?? "";
at("colors").checked = storage.read("tandem-colors", true);
document.body.classList.toggle("uncolored", !at("colors").checked);
open(location.hash.slice(1));
let connected = connect();
