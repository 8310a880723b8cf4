// The content of one answer, as plain data that the browser can store.

export function newAnswer() {
  return {
    text: "", // what a later request sends as context
    tokens: [], // [text, kind, round], and for a correction the text of the rejected draft token
    drafted: {}, // round -> number of draft tokens, where known
    totals: null, finish: null, error: null, warnings: [],
    began: Date.now(), seconds: 0, // until the last token, or waited for the first one
    first: null, // [seconds, tokens] when the first tokens had arrived
    reasons: false,
  };
}

export function add(answer, chunk, seconds) {
  if (chunk.warnings) answer.warnings = chunk.warnings;
  const [choice] = chunk.choices;
  if (!choice) return;
  if (choice.delta?.reasoning) answer.reasons = true;
  answer.text += (choice.delta ? choice.delta.content : choice.text) ?? "";
  for (const { text, kind, round, rejected } of choice.token_details ?? []) {
    answer.tokens.push(rejected === undefined ? [text, kind, round] : [text, kind, round, rejected]);
  }
  const totals = choice.speculation;
  if (totals) {
    const [rounds, drafted] = [answer.totals?.num_rounds ?? 0, answer.totals?.num_draft_tokens ?? 0];
    if (totals.num_rounds === rounds + 1) answer.drafted[totals.num_rounds] = totals.num_draft_tokens - drafted;
    answer.totals = totals;
  }
  answer.finish = choice.finish_reason ?? answer.finish;
  if (answer.tokens.length) {
    answer.first ??= [seconds, answer.tokens.length];
    answer.seconds = seconds;
  }
}

// Tokens per second after the first tokens, so that a cached prompt doesn't count.
export function speed(answer) {
  const [seconds, tokens] = answer.first ?? [0, 0];
  const [left, time] = [answer.tokens.length - tokens, answer.seconds - seconds];
  return left > 0 && time > 0 ? left / time : null;
}

export const count = (answer, ...kinds) => answer.tokens.filter(([, kind]) => kinds.includes(kind)).length;

// The text that the model wrote: its tokens, then characters whose tokens haven't arrived.
export function written(answer) {
  const placed = answer.tokens.map(([text]) => text).join("");
  return { source: placed + (answer.reasons ? "" : answer.text.slice(placed.length)), placed: placed.length };
}

// The positions of the reasoning in that text, without its tags, and the start of the answer proper.
export function reasoning(answer, source) {
  if (!answer.reasons) return { from: 0, to: 0, end: 0 };
  const [{ length: from }] = /^\s*(?:<think>)?\s*/.exec(source);
  const to = source.indexOf("</think>");
  return to < 0 ? { from, to: source.length, end: source.length } : { from, to, end: to + "</think>".length };
}

const number = (many, noun) => `${many} ${noun}${many === 1 ? "" : noun === "guess" ? "es" : "s"}`;

// What happened in a round, in words.
export function explain(answer, round) {
  const tokens = answer.tokens.filter(([, , of]) => of === round);
  const of = (kind) => tokens.filter(([, own]) => own === kind);
  const kept = of("accepted").length;
  const forced = of("forced").length ? ` The schema allowed no other token for ${of("forced").length} of them.` : "";
  if (round === 0) return `Before the first round: ${number(tokens.length, "token")}, the only ones that the schema allows.`;
  const all = `Round ${round}: ${number(tokens.length, "token")} from one step of the model.`;
  if (of("correction").length) {
    const [text, , , rejected] = of("correction")[0];
    const right = kept ? `${number(kept, "guess")} ${kept === 1 ? "was" : "were"} right. Then the` : "The";
    const said = rejected === undefined ? " next guess was wrong, and" : ` draft said ${quote(rejected)}, but`;
    const unused = answer.drafted[round] - kept - 1;
    const rest = unused > 0 ? ` The ${unused === 1 ? "guess" : `${unused} guesses`} after it didn't fit, either.` : "";
    return `${all} ${right}${said} the model chose ${quote(text)}.${rest}${forced}`;
  }
  if (of("bonus").length) {
    return `${all} ${kept === 1 ? "The guess was right" : `All ${kept} guesses were right`}, and the model added ${quote(of("bonus")[0][0])}.${forced}`;
  }
  if (of("unknown").length) return `${all} The engine drafts by itself and doesn't report which tokens were drafted.`;
  if (kept) return `${all} ${number(kept, "guess")} ${kept === 1 ? "was" : "were"} right.${forced}`;
  return `${all} Nothing was drafted.${forced}`;
}

const quote = (text) => JSON.stringify(text);
