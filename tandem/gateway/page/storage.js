// Chats in the browser's storage. A chat is a tree of turns, so an edited prompt or a regenerated
// answer never replaces another one.

const CHAT = "tandem-chat-";
const UNSENT = "tandem-unsent-";

export function read(name, otherwise = null) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // no storage, or not ours
  }
}

// Returns whether the value is stored.
export function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full or forbidden
  }
}

function erase(name) {
  try {
    localStorage.removeItem(name);
  } catch { /* no storage */ }
}

// turns: {parent, prompt, answer, baseline}; parent is an index, or -1. leaf: the last shown turn.
export function newChat(settings) {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}`, title: "", used: Date.now(), settings, turns: [], leaf: -1 };
}

export function allChats() {
  let names = [];
  try {
    names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
  } catch { /* no storage */ }
  return names.map((name) => read(name)).filter((chat) => chat?.turns).sort((a, b) => b.used - a.used);
}

export const readChat = (id) => read(CHAT + id);
export const saveChat = (chat) => write(CHAT + chat.id, chat);

export function deleteChat(id) {
  erase(CHAT + id);
  erase(UNSENT + id);
}

export const unsent = (id) => read(UNSENT + id, "");
export const keepUnsent = (id, text) => (text ? write(UNSENT + id, text) : erase(UNSENT + id));

// Returns the indices of the shown turns, first to last.
export function path(chat) {
  const found = [];
  for (let at = chat.leaf; at >= 0; at = chat.turns[at].parent) found.unshift(at);
  return found;
}

// Returns the turns that are alternatives to this one, itself included.
export const versions = (chat, at) =>
  chat.turns.map((_, other) => other).filter((other) => chat.turns[other].parent === chat.turns[at].parent);

// Show this turn and the newest ones after it.
export function show(chat, at) {
  for (let next = at; next >= 0; next = chat.turns.findLastIndex((turn) => turn.parent === at)) {
    at = next;
  }
  chat.leaf = at;
}

// A failed answer without text isn't part of the context, and neither is its prompt.
export const inContext = (turn) => turn.answer.text !== "";

export function asMarkdown(chat) {
  const parts = path(chat).map((at) => chat.turns[at]).map(
    (turn) => `## Prompt\n\n${turn.prompt}\n\n## Answer\n\n${turn.answer.text}\n`,
  );
  const system = chat.settings.system ? `## System prompt\n\n${chat.settings.system}\n\n` : "";
  return `# ${chat.title}\n\n${system}${parts.join("\n")}`;
}
