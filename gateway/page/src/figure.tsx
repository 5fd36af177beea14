// An image with the boxes of an answer drawn on it.
import { useState } from "preact/hooks";
import { findBoxes, type Box, type Scale } from "./boxes";
import type { Media, MediumUsage } from "./types";

interface BoxesProps {
  text: string;
  image: Media;
  model: string;
  // The image as the model saw it; undefined before the answer's end.
  seenAs: MediumUsage | undefined;
}

const SCALES: [Scale, string][] = [
  ["auto", "detected"],
  ["thousand", "0 to 1000"],
  ["fraction", "0 to 1"],
  ["pixel", "pixels of the resized image"],
];

export function Boxes({ text, image, model, seenAs }: BoxesProps) {
  const [scale, setScale] = useState<Scale>("auto");
  // Boxes in pixels are those of a whole image.
  const { width = 0, height = 0 } = seenAs?.num_tiles === 1 ? seenAs : image;
  const seen = { model, width, height };
  const boxes = findBoxes(text, seen, scale);
  if (!boxes.length && !findBoxes(text, seen, "thousand").length) return null;
  return (
    <figure class="boxes">
      <div class="canvas">
        <img src={image.objectUrl} alt={`${image.name} with ${boxes.length} marked objects`} />
        <svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">
          {boxes.map((box, index) => (
            <rect
              key={index}
              class={`box color${index % 6}`}
              x={100 * box.x1}
              y={100 * box.y1}
              width={100 * (box.x2 - box.x1)}
              height={100 * (box.y2 - box.y1)}
              vector-effect="non-scaling-stroke"
            />
          ))}
        </svg>
      </div>
      <figcaption>
        <ol>
          {boxes.map((box, index) => (
            <li key={index} class={`color${index % 6}`}>
              {box.label || "object"} <span class="faint">{corners(box, image)}</span>
            </li>
          ))}
        </ol>
        <label>
          Units of the boxes{" "}
          <select aria-label="Units of the boxes" value={scale} onChange={({ currentTarget }) => setScale(currentTarget.value as Scale)}>
            {SCALES.map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
      </figcaption>
    </figure>
  );
}

function corners({ x1, y1, x2, y2 }: Box, { width, height }: Media): string {
  const [left, top, right, bottom] = [x1 * width, y1 * height, x2 * width, y2 * height].map(Math.round);
  return `${left}, ${top} to ${right}, ${bottom}`;
}
