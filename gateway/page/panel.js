// One answer on the page: its text, with a span per token, its statistics and warnings.

const KINDS = {
  accepted: "accepted", correction: "correction", bonus: "bonus", plain: "without a draft",
  unknown: "of unknown origin", forced: "forced by the schema",
};
const STATISTICS = {
  speed: "tokens/s", acceptance: "acceptance", perRound: "tokens per round", first: "first token",
};

export class Panel {
  #placed = 0; // number of characters whose tokens have arrived
  #rest = null; // element with the characters after them
  #shown = null; // the marked round; 0: tokens that a guide forced before the first round

  constructor(title, showRound) {
    this.element = document.createElement("article");
    this.element.className = "panel";
    const heading = document.createElement("h3");
    heading.textContent = title;
    this.text = document.createElement("div");
    this.text.className = "text";
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", `${title}: arrow keys select a round`);
    this.statistics = document.createElement("dl");
    this.warnings = document.createElement("p");
    this.warnings.className = "wrong";
    this.element.append(heading, this.text, this.warnings, this.statistics);
    this.showRound = showRound;
    this.said = "";
    this.numTokens = 0;
    this.totals = null;
    this.finishReason = null;
    this.began = performance.now();
    this.first = null;
    this.ended = null;
    this.text.addEventListener("pointerover", (event) => {
      if (event.target.dataset.round) this.mark(Number(event.target.dataset.round));
    });
    this.text.addEventListener("pointerleave", () => this.mark(null));
    this.text.addEventListener("blur", () => this.mark(null));
    this.text.addEventListener("keydown", (event) => this.#step(event));
  }

  // Show a chunk of the stream.
  add(chunk) {
    if (chunk.warnings) this.warnings.textContent = `Warning: ${chunk.warnings.join("; ")}`;
    const [choice] = chunk.choices;
    if (!choice) return;
    const text = choice.delta ? choice.delta.content : choice.text;
    const tokens = choice.token_details ?? [];
    this.numTokens += tokens.length;
    if (this.numTokens && this.first === null) this.first = performance.now();
    this.totals = choice.speculation ?? this.totals;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    this.said += text ?? ""; // missing while the model reasons
    this.#show(tokens);
    this.showStatistics();
  }

  end() {
    this.ended = performance.now();
    this.element.removeAttribute("aria-busy");
    this.showStatistics();
  }

  get seconds() {
    return ((this.ended ?? performance.now()) - this.began) / 1000;
  }

  get speed() {
    return this.numTokens / this.seconds;
  }

  showStatistics() {
    const { num_rounds: rounds, num_draft_tokens: drafted, num_accepted_draft_tokens: accepted } =
      this.totals ?? {};
    const values = {
      speed: this.numTokens ? this.speed.toFixed(1) : "–",
      acceptance: drafted ? `${Math.round((100 * accepted) / drafted)}%` : "–",
      perRound: rounds ? (this.numTokens / rounds).toFixed(2) : "–",
      first: this.first ? `${Math.round(this.first - this.began)} ms` : "–",
    };
    if (!this.statistics.children.length) {
      for (const [name, label] of Object.entries(STATISTICS)) {
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const value = document.createElement("dd");
        term.textContent = label;
        value.dataset.statistic = name;
        pair.append(term, value);
        this.statistics.append(pair);
      }
    }
    for (const value of this.statistics.querySelectorAll("dd")) {
      value.textContent = values[value.dataset.statistic];
    }
  }

  // Mark all tokens of a round and show their number by kind. null: mark none.
  mark(round) {
    if (round === this.#shown) return;
    this.#shown = round;
    const kinds = {};
    for (const span of this.text.children) {
      const own = round !== null && Number(span.dataset.round) === round;
      span.classList.toggle("shown", own);
      if (own) kinds[span.dataset.kind] = (kinds[span.dataset.kind] ?? 0) + 1;
    }
    const parts = Object.entries(kinds).map(([kind, count]) => `${count} ${KINDS[kind]}`);
    const place = round === 0 ? "Before the first round" : `Round ${round}`;
    this.showRound(round === null ? "" : `${place}: ${parts.join(", ")}`);
  }

  #step(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const tokens = this.text.querySelectorAll("[data-round]");
    if (!(event.key in steps) || !tokens.length) return;
    event.preventDefault();
    const rounds = [...new Set([...tokens].map((s) => Number(s.dataset.round)))];
    const place = rounds.indexOf(this.#shown) + steps[event.key];
    this.mark(rounds[Math.min(Math.max(place, 0), rounds.length - 1)]);
  }

  // Append the tokens, then the text whose tokens haven't arrived.
  #show(tokens) {
    this.#rest?.remove();
    for (const token of tokens.filter((one) => one.text)) {
      const span = this.#append(token.text);
      span.className = `token ${token.kind}`;
      span.dataset.round = token.round;
      span.dataset.kind = token.kind;
      this.#placed += token.text.length;
    }
    const rest = this.said.slice(this.#placed);
    this.#rest = rest ? this.#append(rest) : null;
  }

  #append(text) {
    const span = document.createElement("span");
    span.textContent = text;
    this.text.append(span);
    return span;
  }
}
