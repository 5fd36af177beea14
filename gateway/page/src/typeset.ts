// Formulas as KaTeX sets them. Loaded, with their fonts, when an answer has one.
import katex from "katex";

declare const MATH_STYLE: string;

const link = document.createElement("link");
link.rel = "stylesheet";
link.href = MATH_STYLE;
document.head.append(link);

// Writes the formula into the element. Tells whether it could: KaTeX does not know all of LaTeX.
export function typeset(text: string, displayMode: boolean, element: HTMLElement): boolean {
  try {
    katex.render(text, element, { displayMode, trust: false, maxExpand: 500, maxSize: 50, strict: "ignore", throwOnError: true });
    return true;
  } catch {
    element.textContent = "";
    return false;
  }
}
