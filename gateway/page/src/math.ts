// Formulas in Markdown, in the delimiters that models write: $…$, $$…$$, \(…\) and \[…\].
import type { TokenizerAndRendererExtension, Tokens } from "marked";

export const MATH = "math";

const found = (raw: string, text: string, isDisplayed: boolean): Tokens.Generic => ({ type: MATH, raw, text: text.trim(), isDisplayed });

// A rule for one place of a token; `start` says where the parser may stop looking for text.
function rule(level: "block" | "inline", start: RegExp, pattern: RegExp): TokenizerAndRendererExtension {
  return {
    name: level === "block" ? `${MATH}Block` : MATH,
    level,
    start: (text) => start.exec(text)?.index,
    tokenizer(text) {
      const match = pattern.exec(text);
      return match ? found(match[0], match[1] ?? match[2] ?? match[3] ?? "", match[3] === undefined) : undefined;
    },
  };
}

export const mathExtensions = [
  rule("block", /(?:^|\n) {0,3}(?:\$\$|\\\[)/, /^ {0,3}(?:\$\$((?:[^$]|\\\$)+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/),
  rule("inline", /\$|\\[([]/, /^(?:\$\$([^$\n]+)\$\$|\\\[(.+?)\\\]|(?:\$(?=\S)([^$\n]*[^$\s\\])\$(?!\d)))/),
  rule("inline", /\\\(/, /^\\\(()?()?(.+?)\\\)/),
];
