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
const OF_NEW_CHAT = "tandem-of-new-chat"; // the same of the chat that hasn't begun
const DEFAULT_COMPLETION = 256; // tokens; the gateway's default is 16
const SAVE_EVERY = 1000; // milliseconds
const RETRY_AFTER = 3000; // milliseconds
const PAYS = 1.05; // the speedup from which drafts pay
const touches = matchMedia("(pointer: coarse)").matches; // no Shift key, so Enter starts a line

let chat; // the shown one
let shown = new Map(); // answers of the shown chat -> panels
const running = new Map(); // id of a chat -> {chat, turn, abort}, while it is answered
const editing = new Set(); // ids of turns with an open editor
let leaving = false; // the browser is closing the page, and with it the connection
let models = [];
let chats = true; // whether the model has a chat template
let retry; // timer

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
  for (let before = storage.find(of, turn.parent); before; before = storage.find(of, before.parent)) {
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

function keep(saved, turn) {
  storage.saveChat(saved, turn);
  showUnsaved();
}

const showUnsaved = () => { at("unsaved").hidden = !storage.isLosing(); };

function showList() {
  const items = storage.allChats().map((one) => {
    const link = element("a", { href: `#${one.id}`, textContent: one.title });
    const item = element("li", {}, link);
    if (one.id !== chat.id) {
      if (running.has(one.id)) item.append(element("span", { className: "quiet", textContent: "answering…" }));
      return item;
    }
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
  chat.deleted = true;
  running.get(chat.id)?.abort.abort();
  storage.deleteChat(chat.id);
  showUnsaved();
  open("");
}

// On a phone, the list of chats hides the chat.
function showChats(listing) {
  document.body.classList.toggle("listing", listing);
  at("show-chats").setAttribute("aria-expanded", listing);
}

// Show a chat; "": a new one.
function open(id) {
  const found = running.get(id)?.chat ?? (id && storage.readChat(id));
  const inherited = storage.read("tandem-settings", defaults);
  chat = found || storage.newChat({ ...defaults, ...inherited, ...storage.readInTab(OF_NEW_CHAT) });
  for (const turn of chat.turns) {
    for (const answer of [turn.answer, turn.baseline]) {
      if (answer?.finish === null && !answer.error && running.get(chat.id)?.turn !== turn) answer.finish = "interrupted";
    }
  }
  history.replaceState(null, "", found ? `#${chat.id}` : location.pathname);
  showSettings(chat.settings);
  promptBox.value = storage.unsent(found ? chat.id : "new");
  showChats(false);
  showList();
  showTurns();
  showRunning();
  say("");
  at("answers").scrollTop = at("answers").scrollHeight;
  promptBox.focus();
}

// Show another chat. The browser's Back button returns to this one.
function go(id) {
  if (id !== location.hash.slice(1)) history.pushState(null, "", id ? `#${id}` : location.pathname);
  open(id);
}

// Another tab has changed or deleted a chat.
function followChat(id) {
  const found = storage.readChat(id);
  if (id === chat.id && found) chat.title = found.title;
  else if (id === chat.id && chat.turns.length) say("Another tab deleted this chat. The next prompt brings it back.");
  showList();
}

// Another tab answers in the shown chat.
function followTurn(turn) {
  const known = storage.find(chat, turn.id);
  if (known && known !== running.get(chat.id)?.turn) {
    for (const [old, now] of [[known.answer, turn.answer], [known.baseline, turn.baseline]]) {
      if (old && now) Object.assign(old, now);
      shown.get(old)?.draw();
    }
    const made = elementOf(known);
    if (made) showVerdict(made, known);
  } else if (!known) {
    chat.turns.push(turn);
    if (chat.leaf === turn.parent && !running.has(chat.id)) {
      chat.leaf = turn.id;
      showTurn(turn);
    } else showTurns();
  }
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
  turns.replaceChildren(...storage.path(chat).map((turn) => turnElement(turn)));
  if (document.activeElement === document.body && !touches) promptBox.focus(); // its element is gone
  showRest();
}

// Show a new turn. Without an alternative, the turns before it stay as they are.
function showTurn(turn) {
  if ((turns.lastElementChild?.dataset.turn ?? null) !== turn.parent) showTurns();
  else {
    turns.append(turnElement(turn));
    showRest();
  }
}

function showRest() {
  at("examples").hidden = turns.hasChildNodes();
  showLegend();
  countContext();
}

const elementOf = (turn) => turns.querySelector(`[data-turn="${turn.id}"]`);

function turnElement(turn) {
  const said = element("div", { className: "said", textContent: turn.prompt, tabIndex: 0, role: "group", "aria-label": "Prompt" });
  const edit = smallButton("Edit", () => startEdit(turn, said, actions));
  const actions = element("div", { className: "actions" }, edit, copyButton("Copy prompt", () => turn.prompt));
  const versions = storage.versions(chat, turn);
  if (versions.length > 1) actions.append(versionButtons(versions, versions.indexOf(turn)));
  const panels = element("div", { className: "panels" });
  if (turn.baseline) panels.append(element("div", { className: "verdict" }));
  panels.append(panelFor(turn.answer, turn.baseline ? "With drafts" : "Answer", turn, !turn.baseline));
  if (turn.baseline) panels.append(panelFor(turn.baseline, "Without drafts", turn, false));
  const again = smallButton("Regenerate", () => ask(turn, Boolean(turn.baseline)));
  const below = element("div", { className: "actions" }, copyButton("Copy answer", () => turn.answer.text), again);
  const number = storage.path(chat).indexOf(turn) + 1;
  const made = element("article", { className: "turn", "aria-label": `Turn ${number}` }, said, actions, panels, below);
  made.dataset.turn = turn.id;
  showVerdict(made, turn);
  if (editing.has(turn.id)) startEdit(turn, said, actions);
  return made;
}

function smallButton(name, act) {
  const button = element("button", { type: "button", className: "small", textContent: name });
  button.addEventListener("click", act);
  return button;
}

function versionButtons(versions, place) {
  const go = (label, to) => {
    const button = smallButton(label === "Previous version" ? "‹" : "›", () => {
      storage.show(chat, to);
      keep(chat);
      showTurns();
      elementOf(to).querySelector(`[aria-label="${label}"]`).focus();
    });
    button.setAttribute("aria-label", label);
    button.disabled = !to;
    return button;
  };
  return element(
    "span", { className: "versions" }, go("Previous version", versions[place - 1]),
    `${place + 1}/${versions.length}`, go("Next version", versions[place + 1]),
  );
}

// The editor closes with its Cancel button. Until then, its text survives: Esc only hides it.
function startEdit(turn, said, actions) {
  const box = element("textarea", { value: storage.unsent(turn.id) || turn.prompt, rows: 4, "aria-label": "Edited prompt" });
  const send = element("button", { type: "button", textContent: "Send edited prompt" });
  const cancel = element("button", { type: "button", textContent: "Cancel" });
  const editor = element("div", { className: "said editor" }, box, element("div", { className: "row" }, send, cancel));
  const hide = () => {
    editing.delete(turn.id);
    editor.replaceWith(said);
    actions.hidden = false;
    actions.firstElementChild.focus();
  };
  const submit = () => {
    if (running.has(chat.id)) say("An answer is running. Stop it to send the edited prompt.");
    else if (box.value.trim()) {
      const asking = ask({ ...turn, prompt: box.value }, Boolean(turn.baseline));
      if (!running.has(chat.id)) return;
      editing.delete(turn.id);
      storage.keepUnsent(turn.id, "");
      return asking;
    }
  };
  send.addEventListener("click", submit);
  cancel.addEventListener("click", () => { storage.keepUnsent(turn.id, ""); hide(); });
  box.addEventListener("input", () => storage.keepUnsent(turn.id, box.value));
  box.addEventListener("keydown", (event) => {
    if (isSend(event)) { event.preventDefault(); submit(); }
    if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); hide(); }
  });
  editing.add(turn.id);
  said.replaceWith(editor);
  actions.hidden = true;
  box.focus();
}

function showVerdict(made, turn) {
  const box = made.querySelector(".verdict");
  const [drafted, baseline] = [speed(turn.answer), turn.baseline && speed(turn.baseline)];
  if (!box || !drafted || !baseline || turn.baseline.finish === null) return;
  const ratio = drafted / baseline;
  const words = ratio > 1 ? "as fast with drafts" : "the speed with drafts";
  const { num_accepted_draft_tokens: right, num_draft_tokens: guesses } = turn.answer.totals ?? {};
  const used = guesses ? `${right} of ${turn.answer.tokens.length} tokens came from drafts, and ${guesses - right} guesses were wrong` : "nothing was drafted";
  const why = ratio < PAYS ? ` Drafts don't pay here: ${used}.` : "";
  box.replaceChildren(
    element("p", { className: "ratio" }, element("strong", { textContent: `${ratio.toFixed(2)}x` }), ` ${words}`),
    element("p", { textContent: `${drafted.toFixed(1)} instead of ${baseline.toFixed(1)} tokens/s.${why} ${difference(turn.answer.text, turn.baseline.text)}` }),
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
  for (const sample of at("legend").querySelectorAll(".token")) {
    const [item, kind] = [sample.parentElement, sample.classList[1]];
    item.hidden = !["accepted", "correction"].includes(kind) && !answers.some((answer) => count(answer, kind));
  }
}

// Show the number of tokens in the context, as the model's tokenizer counts them.
async function countContext() {
  const counted = chat;
  const total = models[0]?.max_model_len;
  const path = storage.path(chat);
  const last = path.at(-1);
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
  const here = running.has(chat.id);
  at("send").hidden = here;
  at("stop").hidden = !here;
  if (here) say("Answering…");
}

async function answer(into, body, { signal }) {
  const path = body.messages ? "/v1/chat/completions" : "/v1/completions";
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  const waiting = setInterval(() => {
    if (into.first) return;
    into.seconds = seconds();
    shown.get(into)?.draw();
  }, 1000);
  shown.get(into)?.draw();
  try {
    for await (const chunk of stream(path, body, key(), signal)) {
      add(into, chunk, seconds());
      shown.get(into)?.update();
    }
    into.finish ??= "stop";
    if (into.finish === "length" && body.max_tokens === undefined) into.finish = "full";
  } catch (error) {
    if (leaving) into.finish = "interrupted";
    else if (error.name === "AbortError") into.finish = "stopped";
    else if (error instanceof ApiError) into.error = error.message;
    else into.error = into.tokens.length ? "The connection broke, so the answer is incomplete." : "The server doesn't respond. Regenerate asks again.";
    if (error.code === "context_length_exceeded") into.error = `The chat is too long for the model. Start a new one, or edit an earlier prompt. (${error.message})`;
    throw error;
  } finally {
    clearInterval(waiting);
    shown.get(into)?.draw();
  }
}

// Add a turn to the shown chat and answer it.
async function ask({ parent, prompt, completes, plain }, compares) {
  if (running.has(chat.id)) {
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
  const turn = { id: storage.newId(), parent, prompt, completes: completes ?? (models.length ? isCompletion() : undefined), plain: plain ?? Boolean(own.settings.schema.trim()), answer: newAnswer(), baseline: compares ? newAnswer() : null };
  const abort = new AbortController();
  running.set(own.id, { chat: own, turn, abort });
  showRunning();
  if (!own.turns.length) storage.writeInTab(OF_NEW_CHAT, null);
  own.turns.push(turn);
  own.leaf = turn.id;
  own.title ||= prompt.trim().replace(/\s+/g, " ").slice(0, 60);
  own.used = Date.now();
  keep(own, turn);
  if (chat === own) {
    history.replaceState(null, "", `#${own.id}`);
    showList();
    showTurn(turn);
    at("answers").scrollTop = at("answers").scrollHeight;
  }
  const save = () => own.deleted || keep(own, turn);
  const saving = setInterval(save, SAVE_EVERY);
  let words = "";
  await connected; // the form depends on the server
  if (turn.completes === undefined) {
    turn.completes = isCompletion();
    if (chat === own) showTurns();
  }
  try {
    const body = bodyOf(own, turn);
    if (compares) body.seed ??= Math.floor(Math.random() * 2 ** 31);
    await answer(turn.answer, body, abort);
    // Sequential, because concurrent requests would slow each other down.
    if (compares) await answer(turn.baseline, { ...body, drafter: "none", num_draft_tokens: undefined }, abort);
    words = `Complete: ${turn.answer.tokens.length} tokens.`;
    if (own.turns.some((other) => other !== turn && other.parent === parent && other.answer.text === turn.answer.text) && Number(own.settings.temperature) === 0) {
      words += " At temperature 0, the answer is the same each time; Settings can raise it.";
    }
    if (chat === own) at("announcer").textContent = turn.answer.text.slice(0, 1000);
  } catch (error) {
    words = turn.answer.error ?? turn.baseline?.error ?? "Stopped.";
    if (turn.baseline?.finish === null && !turn.baseline.error) turn.baseline = null; // it hasn't begun
    if (error.status === 401) askForKey();
    else if (error.name !== "AbortError" && !(error.status < 500)) checkLater();
  } finally {
    running.delete(own.id);
    clearInterval(saving);
    save();
    showList();
    if (chat === own) {
      showEnd(turn);
      showRunning();
      say(words, Boolean(turn.answer.error ?? turn.baseline?.error));
    }
  }
  return true;
}

// The turn's other elements stay, and with them the focus, a selection, and an editor.
function showEnd(turn) {
  const made = elementOf(turn);
  if (!made) return;
  const ended = made.querySelectorAll(".panel").length > 1 && !turn.baseline;
  if (ended) made.replaceWith(turnElement(turn));
  else showVerdict(made, turn);
  if (follows) made.querySelector(".verdict")?.scrollIntoView({ block: "nearest" });
  showLegend();
  countContext();
}

// The name under which the text that isn't sent is kept.
const unsentPlace = () => (chat.turns.length ? chat.id : "new");

async function send() {
  const text = promptBox.value;
  if (!text.trim()) return;
  const place = unsentPlace();
  const [own, known] = [chat, chat.turns.length];
  const asking = ask({ parent: chat.leaf, prompt: text }, at("compare").checked);
  if (own.turns.length > known) {
    promptBox.value = "";
    storage.keepUnsent(place, "");
  }
  await asking;
}

function showExamples() {
  at("example-list").replaceChildren(...(chats ? CHAT : COMPLETION).map((example) => {
    const button = element("button", { type: "button" }, element("strong", { textContent: example.title }), element("span", { textContent: example.why }));
    button.addEventListener("click", () => {
      at("schema").value = example.schema ? JSON.stringify(example.schema) : "";
      showExtras();
      ask({ parent: null, prompt: example.prompt }, true);
    });
    return element("li", {}, button);
  }));
}

function askForKey() {
  at("key-wrong").hidden = false;
  if (!at("settings").open) at("settings").showModal();
  at("key").focus();
}

// Not at once: a server that stops ends its answers first.
function checkLater() {
  clearTimeout(retry);
  retry = setTimeout(() => { connected = connect(); }, RETRY_AFTER);
}

async function connect() {
  clearTimeout(retry);
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
    if (!at("key-wrong").hidden || at("server").classList.contains("wrong")) say("");
    at("key-wrong").hidden = true;
    at("server").textContent = first.root;
    at("server").classList.remove("wrong");
    document.title = `${first.root} · Tandem`;
    at("mode").disabled = at("system").disabled = !chats;
    at("welcome").textContent = chats
      ? "Ask something, or try an example. Each one runs with and without drafts: guesses of the next words that the model checks in one step."
      : "This model has no chat template, so it continues your text. Each prompt is on its own.";
    showSettings(chat.settings);
    showExamples();
    countContext();
  } catch (error) {
    const away = !(error.status < 500); // or restarting
    at("server").textContent = away ? "The server doesn't respond. Trying again…" : error.message;
    at("server").classList.add("wrong");
    if (away) checkLater();
    else if (error.status === 401) askForKey();
  }
}

// ---- Events

// Safari ends a composition before the Enter that confirms it; its code is then 229.
const isSend = (event) => event.key === "Enter" && !event.isComposing && event.keyCode !== 229
  && (event.ctrlKey || event.metaKey || !(event.shiftKey || touches));
if (touches) at("keys").textContent = "";

form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
promptBox.addEventListener("keydown", (event) => {
  if (isSend(event)) { event.preventDefault(); send(); }
});
promptBox.addEventListener("input", () => {
  storage.keepUnsent(unsentPlace(), promptBox.value);
  showUnsaved();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || at("settings").open) return;
  if (document.body.classList.contains("listing")) showChats(false);
  else running.get(chat.id)?.abort.abort();
});
at("stop").addEventListener("click", () => { running.get(chat.id)?.abort.abort(); promptBox.focus(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); promptBox.focus(); });
at("new").addEventListener("click", () => go(""));
at("show-chats").addEventListener("click", () => {
  showChats(!document.body.classList.contains("listing"));
});
at("chat-list").addEventListener("click", (event) => {
  const id = event.target.closest("a")?.hash.slice(1);
  if (!id || event.ctrlKey || event.metaKey) return; // those keys open another tab
  event.preventDefault();
  go(id);
});
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id !== chat.id) open(id);
});
addEventListener("storage", ({ key: name }) => {
  const changed = storage.describe(name);
  if (changed.chat) followChat(changed.chat);
  else if (changed.turn && changed.of === `${chat.id}-${changed.turn.id}`) followTurn(changed.turn);
});
addEventListener("pagehide", () => {
  leaving = true;
  for (const { chat: own, turn } of running.values()) if (!own.deleted) keep(own, turn);
});
addEventListener("beforeunload", (event) => {
  if (storage.isLosing()) event.preventDefault();
});
addEventListener("pageshow", () => { leaving = false; });
for (const button of ["show-settings", "extras"]) at(button).addEventListener("click", () => at("settings").showModal());
at("settings-form").addEventListener("input", () => {
  chat.settings = settings();
  if (chat.turns.length) keep(chat);
  else storage.writeInTab(OF_NEW_CHAT, { prediction: at("prediction").value, schema: at("schema").value });
  const inherited = Object.entries(chat.settings).filter(([id]) => !OF_ONE_CHAT.includes(id));
  storage.write("tandem-settings", Object.fromEntries(inherited));
  showExtras();
});
at("settings").addEventListener("close", () => promptBox.focus());
at("compare").addEventListener("change", () => storage.write("tandem-compare", at("compare").checked));
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
  storage.writeInTab("tandem-key", key());
  connected = connect();
});

const defaults = settings();
at("key").value = storage.readInTab("tandem-key", "");
at("compare").checked = storage.read("tandem-compare", false);
at("colors").checked = storage.read("tandem-colors", true);
document.body.classList.toggle("uncolored", !at("colors").checked);
open(location.hash.slice(1));
let connected = connect();
