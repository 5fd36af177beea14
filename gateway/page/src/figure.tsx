// An image with the boxes and points of an answer drawn on it.
import type { Grounding, Media, SeenImage } from "./types";

interface Props {
  found: Grounding[];
  image: Media;
  seen: SeenImage | undefined;
}

export function Groundings({ found, image, seen }: Props) {
  if (!found.length || !seen) return null;
  const isTurned = seen.orientation >= 5;
  const [width, height] = isTurned ? [seen.height, seen.width] : [seen.width, seen.height];
  return (
    <figure class="boxes">
      <div class="canvas">
        <img src={image.objectUrl} alt={`${image.name} with ${found.length} marked objects`} />
        <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
          <g transform={turn(seen)}>
            {found.map((each, index) => (
              <Mark key={index} place={each} name={`box color${index % 6}`} radius={Math.max(width, height) / 80} />
            ))}
          </g>
        </svg>
      </div>
      <figcaption>
        <ol>
          {found.map((each, index) => (
            <li key={index} class={`color${index % 6}`}>
              {each.label || "object"} <span class="faint">{describe(each)}</span>
            </li>
          ))}
        </ol>
      </figcaption>
    </figure>
  );
}

function Mark({ place: { box, point }, name, radius }: { place: Grounding; name: string; radius: number }) {
  if (point) return <circle class={name} cx={point.x} cy={point.y} r={radius} vector-effect="non-scaling-stroke" />;
  if (!box) return null;
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  return <rect class={name} x={box.left} y={box.top} width={width} height={height} vector-effect="non-scaling-stroke" />;
}

// How browsers turn the pixels of a file, by its EXIF orientation.
function turn({ orientation, width, height }: SeenImage): string | undefined {
  const matrices: Record<number, number[]> = {
    2: [-1, 0, 0, 1, width, 0],
    3: [-1, 0, 0, -1, width, height],
    4: [1, 0, 0, -1, 0, height],
    5: [0, 1, 1, 0, 0, 0],
    6: [0, 1, -1, 0, height, 0],
    7: [0, -1, -1, 0, height, width],
    8: [0, -1, 1, 0, 0, width],
  };
  const matrix = matrices[orientation];
  return matrix && `matrix(${matrix.join(" ")})`;
}

function describe({ box, point }: Grounding): string {
  if (point) return [point.x, point.y].map(Math.round).join(", ");
  if (!box) return "";
  const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.round);
  return `${left}, ${top} to ${right}, ${bottom}`;
}
