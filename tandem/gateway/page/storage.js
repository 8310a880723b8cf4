// Chats in the browser's storage. A chat is a tree of turns, so an edited prompt or a regenerated
// answer never replaces another one. A turn has an entry of its own, so two tabs that answer in the
// same chat don't overwrite each other's turns.

const CHAT = "tandem-chat-"; // a chat without its turns
const TURN = "tandem-turn-";
const UNSENT = "tandem-unsent-";
const kept = new Map(); // what the browser doesn't store; lost when the page closes

function stored(name, session) {
  try {
    return JSON.parse((session ? sessionStorage : localStorage).getItem(name));
  } catch {
    return null; // no storage, or not ours
  }
}

export function read(name, otherwise = null) {
  return (kept.has(name) ? JSON.parse(kept.get(name)) : stored(name)) ?? otherwise;
}

// Returns whether the browser stores the value.
export function write(name, value) {
  const text = JSON.stringify(value);
  try {
    localStorage.setItem(name, text);
    kept.delete(name);
    return true;
  } catch { // full or forbidden
    kept.set(name, text);
    return false;
  }
}

function erase(name) {
  kept.delete(name);
  try {
    localStorage.removeItem(name);
  } catch { /* no storage */ }
}

function names(prefix) {
  let all = [];
  try {
    all = Object.keys(localStorage);
  } catch { /* no storage */ }
  return [...new Set([...all, ...kept.keys()])].filter((name) => name.startsWith(prefix));
}

// Values of one tab: the storage survives a reload.
export const readInTab = (name, otherwise = null) => stored(name, true) ?? otherwise;

export function writeInTab(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch { /* full or forbidden */ }
}

// Returns whether closing the page loses chats or text.
export const isLosing = () => [CHAT, TURN, UNSENT].some((prefix) => [...kept.keys()].some((name) => name.startsWith(prefix)));

// ---- Chats

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

// turns: {id, parent, prompt, answer, baseline}; parent is the id of a turn, or null. leaf: the id
// of the last shown turn.
export function newChat(settings) {
  return { id: newId(), title: "", used: Date.now(), settings, turns: [], leaf: null };
}

// Returns the chats, last used first, without their turns.
export const allChats = () => names(CHAT).map((name) => read(name)).filter(Boolean).sort((a, b) => b.used - a.used);

export function readChat(id) {
  const chat = read(CHAT + id);
  return chat && { ...chat, turns: names(`${TURN}${id}-`).map((name) => read(name)).sort((a, b) => a.answer.began - b.answer.began) };
}

// Save a chat, with this turn of it. Returns whether the browser stores both.
export function saveChat(chat, turn) {
  const { turns, ...rest } = chat;
  // Without an entry, another tab has deleted the chat, or the storage was cleared.
  const changed = read(CHAT + chat.id) ? turns.filter((one) => one === turn) : turns;
  const done = changed.map((one) => write(`${TURN}${chat.id}-${one.id}`, one));
  return write(CHAT + chat.id, rest) && done.every(Boolean);
}

export function deleteChat(id) {
  const turns = names(`${TURN}${id}-`);
  for (const place of [id, ...turns.map((name) => name.slice(`${TURN}${id}-`.length))]) {
    writeInTab(UNSENT + place, "");
    erase(UNSENT + place);
  }
  for (const name of [CHAT + id, ...turns]) erase(name);
  for (const [name, text] of kept) write(name, JSON.parse(text)); // there is space for them
}

// Returns what an entry is, so that a tab can follow changes of another one: a chat or a turn.
export function describe(name) {
  if (name?.startsWith(CHAT)) return { chat: name.slice(CHAT.length) };
  return name?.startsWith(TURN) ? { turn: read(name), of: name.slice(TURN.length) } : {};
}

// ---- Text that isn't sent

// A tab's own text first: two tabs may both begin a chat.
export const unsent = (id) => readInTab(UNSENT + id) ?? read(UNSENT + id, "");

export function keepUnsent(id, text) {
  const own = readInTab(UNSENT + id);
  writeInTab(UNSENT + id, text);
  if (text) write(UNSENT + id, text);
  else if (own === null || own === read(UNSENT + id)) erase(UNSENT + id);
}

// ---- Turns

export const find = (chat, id) => chat.turns.find((turn) => turn.id === id);

// Returns the shown turns, first to last.
export function path(chat) {
  const found = [];
  for (let turn = find(chat, chat.leaf); turn; turn = find(chat, turn.parent)) found.unshift(turn);
  return found;
}

// Returns the turns that are alternatives to this one, itself included.
export const versions = (chat, turn) => chat.turns.filter(({ parent }) => parent === turn.parent);

// Show this turn and the newest ones after it.
export function show(chat, turn) {
  for (let next = turn; next; next = chat.turns.findLast(({ parent }) => parent === chat.leaf)) chat.leaf = next.id;
}

// A failed answer without text isn't part of the context, and neither is its prompt.
export const inContext = (turn) => turn.answer.text !== "";

export function asMarkdown(chat) {
  const parts = path(chat).map((turn) => `## Prompt\n\n${turn.prompt}\n\n## Answer\n\n${turn.answer.text}\n`);
  const system = chat.settings.system ? `## System prompt\n\n${chat.settings.system}\n\n` : "";
  return `# ${chat.title}\n\n${system}${parts.join("\n")}`;
}
