// Code in colours, for the languages that highlight.js counts as common. Loaded when an answer has code.
import { common, createLowlight } from "lowlight";
import { h, type ComponentChildren } from "preact";

const lowlight = createLowlight(common);

type Tree = ReturnType<typeof lowlight.highlight>;

// Returns null for a language that is not known.
export function highlight(text: string, language: string): ComponentChildren | null {
  return lowlight.registered(language) ? children(lowlight.highlight(language, text)) : null;
}

function children({ children: nodes }: Pick<Tree, "children">): ComponentChildren {
  return nodes.map((node) => {
    if (node.type === "text") return node.value;
    if (node.type !== "element") return null;
    const names = node.properties.className;
    return h("span", { class: Array.isArray(names) ? names.join(" ") : undefined }, children(node as Pick<Tree, "children">));
  });
}
