// The Markdown of an answer as elements. A model's text never becomes HTML: each token of the parser becomes an element of
// the fixed list below, and HTML that the text contains is shown as it is written.
import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { CopyButton } from "./copy";
import { MATH, mathExtensions } from "./math";
import { t } from "./text";

// Longer answers are shown up to here: layout of millions of elements would stop the browser.
const MAX_SHOWN = 100_000;
// Longer blocks are shown as they are written. The parser takes time that grows faster than their length.
const MAX_BLOCK = 50_000;
// Deeper lists and quotes are shown as they are written.
const MAX_DEPTH = 24;
// While an answer is streamed, this share of the time at most goes into showing it.
const SHARE = 0.25;

const marked = new Marked({ gfm: true, extensions: mathExtensions });

interface Props {
  text: string;
  isRunning: boolean;
}

export default function Markdown({ text, isRunning }: Props) {
  const shown = usePaced(text.slice(0, MAX_SHOWN).replace(/\r\n?/g, "\n"), isRunning);
  const blocks = useBlocks(shown);
  const top = (blocks.find(({ type }) => type === "heading") as Tokens.Heading | undefined)?.depth ?? 1;
  return (
    <div class="text markdown">
      {blocks.map((token, index) => (
        <Block key={index} token={token} top={top} isOpen={isRunning && index === blocks.length - 1} />
      ))}
      {text.length > MAX_SHOWN && (
        <p class="faint">
          {t("{shown} of {all} characters are shown. “Copy” takes all of them.", { shown: MAX_SHOWN.toLocaleString(), all: text.length.toLocaleString() })}
        </p>
      )}
    </div>
  );
}

// The text, some time later if the last time took long to show.
function usePaced(text: string, isRunning: boolean): string {
  const [shown, setShown] = useState(text);
  const next = useRef(0);
  const start = performance.now();
  useLayoutEffect(() => {
    const now = performance.now();
    next.current = now + (now - start) / SHARE;
  }, [shown]);
  useEffect(() => {
    if (text === shown) return;
    const timer = setTimeout(() => setShown(text), isRunning ? Math.max(0, next.current - performance.now()) : 0);
    return () => clearTimeout(timer);
  }, [text, shown, isRunning]);
  return isRunning ? shown : text;
}

interface Parsed {
  text: string;
  // The blocks that can no longer change, and where the text after them begins.
  blocks: Token[];
  end: number;
}

// The blocks of a text that grows. Those before the last one are parsed once.
function useBlocks(text: string): Token[] {
  const parsed = useRef<Parsed>({ text: "", blocks: [], end: 0 });
  return useMemo(() => {
    const before = parsed.current;
    const { blocks, end } = text.startsWith(before.text) ? before : { blocks: [], end: 0 };
    const rest = lex(text.slice(end));
    const last = rest.at(-1);
    const isWhole = rest.reduce((length, { raw }) => length + raw.length, 0) === text.length - end;
    if (!last || !isWhole) {
      parsed.current = { text, blocks, end };
      return [...blocks, ...rest];
    }
    const done = [...blocks, ...rest.slice(0, -1)];
    parsed.current = { text, blocks: done, end: text.length - last.raw.length };
    return [...done, last];
  }, [text]);
}

function lex(text: string): Token[] {
  if (text.length > MAX_BLOCK && !/\n\n/.test(text.slice(0, MAX_BLOCK))) return [asWritten(text)];
  try {
    return marked.lexer(text);
  } catch {
    // Such as nesting that is deeper than the parser's stack.
    return [asWritten(text)];
  }
}

const asWritten = (text: string): Tokens.Generic => ({ type: "html", raw: text, text });

// A block whose token is the same is not rendered again.
function Block({ token, top, isOpen }: { token: Token; top: number; isOpen: boolean }) {
  return useMemo(() => {
    const isCode = token.type === "code";
    if (token.type === "heading") return <Heading isTop={token.depth <= top}>{elements(token.tokens, 0)}</Heading>;
    if (token.raw.length > MAX_BLOCK && !isCode) return <p class="written">{token.raw}</p>;
    return isCode ? <Code token={token as Tokens.Code} isOpen={isOpen} /> : <>{element(token, 0)}</>;
  }, [token, top, isOpen]);
}

function elements(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return tokens?.map((token) => element(token, depth + 1));
}

function element(token: Token, depth: number): ComponentChildren {
  if (depth > MAX_DEPTH) return token.raw;
  const inner = (): ComponentChildren => elements((token as Tokens.Generic).tokens, depth);
  switch (token.type) {
    case "heading":
      return <Heading isTop={false}>{inner()}</Heading>;
    case "paragraph":
      return <p>{inner()}</p>;
    case "text":
      return token.tokens ? inner() : decoded(token.text);
    case "escape":
      return decoded(token.text);
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "code":
      return <Code token={token as Tokens.Code} isOpen={false} />;
    case "br":
      return <br />;
    case "hr":
      return <hr />;
    case "blockquote":
      return <blockquote>{inner()}</blockquote>;
    case "list":
      return <List token={token as Tokens.List} depth={depth} />;
    case "table":
      return <Table token={token as Tokens.Table} depth={depth} />;
    case "link":
      return <Link href={token.href}>{inner()}</Link>;
    case "image":
      // Nothing is loaded from elsewhere.
      return <Link href={token.href}>{token.text || token.href}</Link>;
    case MATH:
      return <Formula text={token.text} isDisplayed={token.isDisplayed} />;
    case "space":
    case "def":
      return null;
    case "checkbox":
      return null;
    default:
      return /^<br\s*\/?>$/i.test(token.raw.trim()) ? <br /> : <span class="written">{token.raw}</span>;
  }
}

// Headings of answers stand below those of the page, without gaps between levels: the first one's level is the top one.
function Heading({ isTop, children }: { isTop: boolean; children: ComponentChildren }) {
  return isTop ? <h3>{children}</h3> : <h4>{children}</h4>;
}

function List({ token, depth }: { token: Tokens.List; depth: number }) {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {item.task && (item.checked ? "☑ " : "☐ ")}
      {elements(item.tokens, depth)}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ token, depth }: { token: Tokens.Table; depth: number }) {
  const side = (index: number): string => token.align[index] ?? "";
  return (
    <div class="wide" tabIndex={0} role="region" aria-label={t("Table")}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} scope="col" class={side(index)}>
                {elements(cell.tokens, depth)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column} class={side(column)}>
                  {elements(cell.tokens, depth)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const OPENED = new Set(["http:", "https:", "mailto:"]);

// A link opens a new tab, which learns nothing of the page. Its address is shown, because its text may name another one.
function Link({ href, children }: { href: string; children: ComponentChildren }) {
  const url = URL.canParse(href) ? new URL(href) : null;
  if (!url || !OPENED.has(url.protocol) || url.username || url.password) return <>{children}</>;
  return (
    <a href={url.href} target="_blank" rel="noopener noreferrer nofollow" title={url.href}>
      {children}
    </a>
  );
}

function Code({ token, isOpen }: { token: Tokens.Code; isOpen: boolean }) {
  const language = /^[\w+#.-]+/.exec(token.lang ?? "")?.[0]?.toLowerCase() ?? "";
  const colored = useHighlighted(token.text, language, isOpen);
  return (
    <div class="code">
      <div class="actions">
        <span class="faint">{language}</span>
        <span class="space" />
        <CopyButton text={token.text} />
      </div>
      <pre tabIndex={0} aria-label={t("Code")}>
        <code>{colored ?? token.text}</code>
      </pre>
    </div>
  );
}

// The code in colours, once it is complete and the highlighter is loaded; null before.
function useHighlighted(text: string, language: string, isOpen: boolean): ComponentChildren | null {
  const [colored, setColored] = useState<ComponentChildren | null>(null);
  useEffect(() => {
    setColored(null);
    if (isOpen || !language || text.length > MAX_BLOCK) return;
    let isCurrent = true;
    void import("./highlight").then(
      ({ highlight }) => isCurrent && setColored(highlight(text, language)),
      () => undefined,
    );
    return () => void (isCurrent = false);
  }, [text, language, isOpen]);
  return colored;
}

function Formula({ text, isDisplayed }: { text: string; isDisplayed: boolean }) {
  const place = useRef<HTMLSpanElement>(null);
  const [isSet, setSet] = useState(false);
  useEffect(() => {
    let isCurrent = true;
    const set = async (): Promise<void> => {
      const { typeset } = await import("./typeset");
      if (isCurrent && place.current) setSet(typeset(text, isDisplayed, place.current));
    };
    // Without a connection, the formula stays as it is written.
    set().catch(() => undefined);
    return () => void (isCurrent = false);
  }, [text, isDisplayed]);
  return (
    <span class={isDisplayed ? "formula displayed" : "formula"} tabIndex={isDisplayed ? 0 : undefined}>
      <span ref={place} />
      {!isSet && <code>{text}</code>}
    </span>
  );
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// Entities as characters; those that a keyboard has keys for, and numbers.
function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (entity, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? entity;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : entity;
  });
}
