// Renders Markdown from a model, which may be hostile: HTML stays text, images become links, and
// DOMPurify removes whatever else the page doesn't expect.

import { Marked } from "./vendor/marked.js";
import hljs from "./vendor/highlight.js";
import "./vendor/purify.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol",
    "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "class", "start", "align", "type", "checked", "disabled"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escape = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text),
    // The page's own headings have levels 1 to 3.
    heading({ tokens, depth }) {
      const level = Math.min(Math.max(depth, 2) + 2, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    code({ text, lang }) {
      const language = hljs.getLanguage(lang) ? lang : "";
      const code = language ? hljs.highlight(text, { language }).value : escape(text);
      return `<pre><code class="${escape(language && `language-${language}`)}">${code}</code></pre>`;
    },
  },
});

// Returns the top-level blocks of the Markdown text after a position: {raw, start, token}.
export function blocks(source, from) {
  let end = from;
  return marked.lexer(source.slice(from)).map((token) => {
    const start = Math.max(source.indexOf(token.raw, end), end);
    end = start + token.raw.length;
    return { raw: token.raw, start, token };
  });
}

// Returns a block as elements, with its text in spans by token. tokenAt: position -> token or null.
export function rendered({ raw, start, token }, makeSpan, tokenAt) {
  if (token.type === "space") return document.createDocumentFragment();
  const made = DOMPurify.sanitize(marked.parser([token]), ALLOWED);
  align(made, hideMarks(raw, token.type), start, makeSpan, tokenAt);
  for (const link of made.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const box of made.querySelectorAll("input")) {
    box.type = "checkbox";
    box.disabled = true;
    box.setAttribute("aria-label", box.checked ? "done" : "to do");
  }
  return made;
}

// Replace characters that Markdown doesn't show, such as the lines that fence code.
function hideMarks(raw, type) {
  const hide = (text) => "\0".repeat(text.length);
  if (type === "code") return raw.replace(/^[ ]*(?:`{3,}|~{3,}).*$/gm, hide);
  const shown = raw.replace(/^[ \t>]*(?:`{3,}|~{3,}).*$/gm, hide).replace(/\]\([^)\n]*\)/g, hide);
  return type === "list" ? shown.replace(/^[ \t]*(?:[-*+]|\d+[.)])[ \t]/gm, hide) : shown;
}

// Put the text of elements into spans. Shown characters occur in the source in the same order.
function align(root, source, start, makeSpan, tokenAt) {
  const nodes = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = 0;
  for (const node of nodes) {
    if (/^\s*\n\s*$/.test(node.data) && !node.parentElement?.closest("pre")) continue; // between elements
    const parts = [];
    for (const character of node.data.split("")) {
      const found = source.indexOf(character, at);
      if (found >= 0 && found - at < (character.trim() ? 200 : 4)) at = found + 1;
      const token = at ? tokenAt(start + at - 1) : null;
      if (parts.length && parts.at(-1).token === token) parts.at(-1).text += character;
      else parts.push({ token, text: character });
    }
    node.replaceWith(...parts.map(({ token, text }) => (token === null ? text : makeSpan(token, text))));
  }
}
