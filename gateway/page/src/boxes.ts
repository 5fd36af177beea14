// Boxes in answers, in the formats of the served model families.

export interface Box {
  label: string;
  // Fractions of the image's width and height, from its left and upper edge.
  x1: number;
  y1: number;
  x2: number;
  y2: number;
}

export type Scale = "auto" | "thousand" | "fraction" | "pixel";

export interface Seen {
  // The model's name, which tells Qwen2.5-VL from Qwen3-VL.
  model: string;
  // The image as the model saw it, in pixels.
  width: number;
  height: number;
}

type Corners = [number, number, number, number];
interface Found {
  label: string;
  corners: Corners;
  form: "json" | "token" | "list";
}

const NUMBER = String.raw`\s*(-?\d+(?:\.\d+)?)\s*`;
const FOUR = new RegExp(`^${[NUMBER, NUMBER, NUMBER, NUMBER].join(",")}$`);
const JSON_BOX = /"(bbox_2d|bbox|box|box_2d)"\s*:\s*\[([^[\]]*)\]/g;
const JSON_LABEL = /"(?:label|name|text_content|object)"\s*:\s*("(?:[^"\\]|\\.)*")/;
// Qwen2-VL; without special tokens, a label and its box are all that is left.
const CORNER = String.raw`\((\d+),\s*(\d+)\)`;
const QWEN2_BOX = new RegExp(
  String.raw`([^()<>|\n]*?)(?:<\|object_ref_end\|>)?(?:<\|box_start\|>)?${CORNER},\s*${CORNER}`,
  "g",
);
// InternVL writes [[x1, y1, x2, y2], …], MiniCPM-V x1 y1 x2 y2.
const TAGGED = /(?:<ref>(.*?)<\/ref>)?\s*<box>(.*?)<\/box>/g;
const BARE_LIST = /\[([^[\]]*)\]/g;

// Finds boxes in an answer.
export function findBoxes(text: string, seen: Seen, scale: Scale): Box[] {
  const found = firstOf([jsonBoxes, taggedBoxes, qwen2Boxes, bareBoxes], text);
  if (!found.length) return [];
  const [width, height] = unitsOf(found, seen, scale);
  return found
    .map(({ label, corners: [x1, y1, x2, y2] }) => ({ label, x1: x1 / width, y1: y1 / height, x2: x2 / width, y2: y2 / height }))
    .filter((box) => box.x1 < box.x2 && box.y1 < box.y2 && box.x1 >= 0 && box.y1 >= 0 && box.x2 <= 1.01 && box.y2 <= 1.01);
}

function firstOf(readers: ((text: string) => Found[])[], text: string): Found[] {
  for (const read of readers) {
    const found = read(text);
    if (found.length) return found;
  }
  return [];
}

function jsonBoxes(text: string): Found[] {
  return [...text.matchAll(JSON_BOX)].flatMap((match) => {
    const corners = fourNumbers(match[2]!);
    if (!corners) return [];
    const open = text.lastIndexOf("{", match.index);
    const close = text.indexOf("}", match.index);
    const quoted = JSON_LABEL.exec(text.slice(open, close < 0 ? text.length : close))?.[1];
    // Google's convention begins with y.
    const [a, b, c, d] = corners;
    return [{ label: unquote(quoted), corners: match[1] === "box_2d" ? [b, a, d, c] : corners, form: "json" }];
  });
}

function taggedBoxes(text: string): Found[] {
  return [...text.matchAll(TAGGED)].flatMap((match) => {
    const numbers = [...match[2]!.matchAll(/-?\d+(?:\.\d+)?/g)].map(([number]) => Number(number));
    const boxes: Found[] = [];
    for (let start = 0; start + 4 <= numbers.length; start += 4) {
      boxes.push({ label: match[1] ?? "", corners: numbers.slice(start, start + 4) as Corners, form: "token" });
    }
    return boxes;
  });
}

function qwen2Boxes(text: string): Found[] {
  return [...text.matchAll(QWEN2_BOX)].map((match) => ({
    label: match[1]!.replace(/^[\s,.;:]+|[\s,.;:]+$/g, ""),
    corners: match.slice(2, 6).map(Number) as Corners,
    form: "token",
  }));
}

function bareBoxes(text: string): Found[] {
  return [...text.matchAll(BARE_LIST)].flatMap((match) => {
    const corners = fourNumbers(match[1]!);
    // Four numbers of another size may be anything.
    return corners?.every((value) => value <= 1) ? [{ label: "", corners, form: "list" as const }] : [];
  });
}

function fourNumbers(text: string): Corners | null {
  const match = FOUR.exec(text);
  return match ? (match.slice(1, 5).map(Number) as Corners) : null;
}

function unquote(quoted: string | undefined): string {
  try {
    return quoted ? JSON.parse(quoted) : "";
  } catch {
    return "";
  }
}

// Returns the width and the height of the image in the units of the boxes.
function unitsOf(found: Found[], seen: Seen, scale: Scale): [number, number] {
  const choice = scale === "auto" ? likelyScale(found, seen.model) : scale;
  if (choice === "fraction") return [1, 1];
  return choice === "thousand" ? [1000, 1000] : [seen.width, seen.height];
}

function likelyScale(found: Found[], model: string): Scale {
  const values = found.flatMap(({ corners }) => corners);
  if (values.every((value) => value <= 1)) return "fraction";
  if (found[0]!.form === "token") return "thousand";
  return /qwen2[._]?5/i.test(model) || values.some((value) => value > 1000) ? "pixel" : "thousand";
}
