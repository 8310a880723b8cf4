// Shows one answer: its text, colored by the origin of each token, and its statistics.

import { count, explain, reasoning, speed, written } from "./answer.js";
import { blocks, rendered } from "./markdown.js";

const ENDS = {
  stopped: "Stopped. The text above is part of the chat.",
  interrupted: "Interrupted when the page closed. The text above is part of the chat.",
  length: "Ended at the maximum number of tokens.",
  full: "Ended because the model's context is full. Start a new chat, or edit an earlier prompt.",
};
// The same without text that a later request sends
const LOST = {
  ...ENDS,
  stopped: "Stopped before the answer. The model doesn't see this turn.",
  interrupted: "Interrupted before the answer. The model doesn't see this turn.",
};

export function element(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Copies a text. Pages from another machine without HTTPS have no clipboard object.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const [box, focused] = [element("textarea", { value: text }), document.activeElement];
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  focused.focus();
  return done;
}

const duration = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);

export function copyButton(label, text) {
  const button = element("button", { type: "button", className: "small", textContent: label });
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Can't copy";
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  return button;
}

export class Panel {
  #opened = null; // whether the user wants to see the reasoning
  #shown = null; // the marked round; 0: tokens that a guide forced before the first round
  #blocks = [];
  #placed = 0;
  #next = 0; // when the text may be drawn again
  #timer = null;

  // plain: the text isn't Markdown.
  constructor(answer, title, { plain, alone, keys }) {
    this.answer = answer;
    this.plain = plain;
    this.element = element("section", { className: "panel", "aria-label": title });
    const heading = element("h3", { textContent: title, className: alone ? "hidden" : "" });
    this.text = element("div", {
      className: plain ? "text plain" : "text", tabIndex: 0, role: "group",
      "aria-label": `${title}: arrow keys explain each round`, "aria-describedby": keys,
    });
    this.round = element("p", { className: "round" });
    this.end = element("p", { className: "end" });
    this.warnings = element("p", { className: "wrong" });
    this.statistics = element("dl");
    this.element.append(heading, this.text, this.round, this.end, this.warnings, this.statistics);
    const over = (event) => {
      const { round } = event.target.dataset ?? {};
      if (round) this.mark(Number(round));
    };
    this.text.addEventListener("pointerover", over);
    this.text.addEventListener("click", over);
    this.text.addEventListener("keydown", (event) => this.#step(event));
    this.draw();
  }

  // Draw soon, and no more often than drawing can keep up with.
  update() {
    if (this.#timer !== null) return;
    this.#timer = setTimeout(() => this.draw(), Math.max(0, this.#next - performance.now()));
  }

  draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const began = performance.now();
    this.#drawText();
    this.#drawFacts();
    this.#next = performance.now() + Math.max(30, 3 * (performance.now() - began));
    this.element.dispatchEvent(new Event("drawn", { bubbles: true }));
  }

  #drawText() {
    const { source, placed } = written(this.answer);
    const ends = [];
    let end = 0;
    for (const [text] of this.answer.tokens) ends.push(end += text.length);
    let last = 0; // searched from here, because positions ascend
    const tokenAt = (place) => {
      if (last && ends[last - 1] > place) last = 0;
      while (last < ends.length && ends[last] <= place) last += 1;
      return last < ends.length ? last : null;
    };
    const span = (token, text) => this.#span(token, text);
    const thoughts = reasoning(this.answer, source);
    const found = this.plain ? [{ raw: source.slice(thoughts.end), start: thoughts.end }] : blocks(source, thoughts.end);
    if (thoughts.end) {
      const open = this.#opened ?? !source.slice(thoughts.end).trim();
      found.unshift({ raw: source.slice(0, thoughts.end), start: 0, open });
    }
    let same = 0;
    while (same < found.length && found[same].raw === this.#blocks[same]?.raw
      && found[same].open === this.#blocks[same].open && found[same].start + found[same].raw.length <= this.#placed) same += 1;
    while (this.text.children.length > same) this.text.lastChild.remove();
    for (const block of found.slice(same)) {
      const made = block.open === undefined ? element("div", { className: "block" }) : this.#details(block.open);
      if (block.open !== undefined) made.append(...this.#plain(source, placed, thoughts.from, thoughts.to));
      else made.append(...(this.plain ? this.#plain(source, placed, block.start) : [rendered(block, span, tokenAt)]));
      for (const code of made.querySelectorAll("pre")) this.#frame(code);
      this.text.append(made);
    }
    this.#blocks = found;
    this.#placed = placed;
  }

  // The text between two positions, as it is.
  #plain(source, placed, from, to = source.length) {
    let end = 0;
    const spans = this.answer.tokens.map(([text], token) => {
      const begin = end;
      end += text.length;
      const part = source.slice(Math.max(begin, from), Math.min(end, to));
      return part ? this.#span(token, part) : "";
    });
    return [...spans, source.slice(Math.max(placed, from), to)];
  }

  #details(open) {
    const summary = element("summary", { textContent: "Reasoning" });
    const details = element("details", { className: "block", open }, summary);
    summary.addEventListener("click", () => { this.#opened = !details.open; });
    return details;
  }

  #span(token, text) {
    const [, kind, round] = this.answer.tokens[token];
    const made = element("span", { className: `token ${kind}`, textContent: text });
    if (round === this.#shown) made.classList.add("shown");
    made.dataset.kind = kind;
    made.dataset.round = round;
    return made;
  }

  #frame(code) {
    const language = /language-(\S+)/.exec(code.firstElementChild?.className ?? "")?.[1] ?? "code";
    const text = code.textContent.replace(/\n$/, "");
    code.tabIndex = 0;
    const head = element("div", { className: "code-head" }, language, copyButton("Copy code", () => text));
    const frame = element("div", { className: "code" }, head);
    code.replaceWith(frame);
    frame.append(code);
  }

  #drawFacts() {
    const { answer } = this;
    const running = answer.finish === null && !answer.error;
    this.element.setAttribute("aria-busy", running);
    this.text.classList.toggle("waiting", running && !answer.text && !answer.tokens.length);
    this.end.textContent = answer.error ?? (answer.text ? ENDS : LOST)[answer.finish] ?? "";
    this.end.classList.toggle("wrong", Boolean(answer.error));
    this.warnings.textContent = answer.warnings.length ? `Warning: ${answer.warnings.join("; ")}` : "";
    const total = answer.tokens.length;
    const rounds = answer.totals?.num_rounds;
    const drafted = answer.totals?.num_draft_tokens;
    const waited = running && !answer.first && Math.round(answer.seconds);
    const values = {
      "waiting for the first token": waited && `${waited} s`,
      "tokens/s": speed(answer)?.toFixed(1),
      drafted: total && `${Math.round((100 * count(answer, "accepted")) / total)}% of the answer`,
      "drafts accepted": drafted && `${Math.round((100 * answer.totals.num_accepted_draft_tokens) / drafted)}%`,
      "tokens per round": rounds && (total / rounds).toFixed(2),
      "first token": answer.first && duration(answer.first[0]),
      tokens: total || "",
    };
    this.statistics.replaceChildren(...Object.entries(values).filter(([, value]) => value).map(
      ([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })),
    ));
  }

  // Mark all tokens of a round and say what happened in it.
  mark(round) {
    this.#shown = round;
    for (const span of this.text.querySelectorAll(".token")) {
      span.classList.toggle("shown", Number(span.dataset.round) === round);
    }
    this.round.textContent = explain(this.answer, round);
  }

  #step(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.target !== this.text || !(event.key in steps) || !this.answer.tokens.length) return;
    event.preventDefault();
    const rounds = [...new Set(this.answer.tokens.map(([, , round]) => round))];
    const place = rounds.indexOf(this.#shown) + steps[event.key];
    this.round.setAttribute("role", "status"); // announced for keys, not for the pointer
    this.mark(rounds[Math.min(Math.max(place, 0), rounds.length - 1)]);
    this.text.querySelector(".shown")?.scrollIntoView({ block: "nearest" });
  }
}
