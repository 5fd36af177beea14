// Media as they are shown: alone, beside what the model saw of them, and with the boxes and points of an answer on them.
import { Maximize2 } from "lucide";
import { useState } from "preact/hooks";
import { Dialog, LabelledButton } from "./controls";
import { describe as describeMedia, describeSeen, objectUrl } from "./media";
import { t } from "./text";
import type { Grounding, Media, MediumUsage, SeenImage } from "./types";

interface FigureProps {
  media: Media;
  seenAs?: MediumUsage[] | undefined;
}

export function MediaFigure({ media, seenAs }: FigureProps) {
  const [isOpen, setOpen] = useState(false);
  const url = objectUrl(media);
  return (
    <figure>
      <Preview media={media} url={url} />
      <figcaption>
        {media.name} <span class="faint">{describeMedia(media)}</span>
        {seenAs?.length === 1 && <p class="seen">{t("To the model: {seen}", { seen: describeSeen(seenAs[0]!) })}</p>}
        {media.kind === "document" && url && (
          <LabelledButton icon={Maximize2} onClick={() => setOpen(true)}>
            {seenAs?.length ? t("Pages as the model saw them") : t("Open")}
          </LabelledButton>
        )}
      </figcaption>
      {isOpen && <Document media={media} url={url!} pages={seenAs ?? []} onClose={() => setOpen(false)} />}
    </figure>
  );
}

function Preview({ media: { kind, name, width, seconds }, url }: { media: Media; url: string | undefined }) {
  if (!url) return <p class="tile faint">{t("No longer kept")}</p>;
  if (kind === "image" && width) return <img src={url} alt={name} />;
  if (kind === "video" && width) return <video src={url} controls muted aria-label={name} />;
  if (kind === "audio" && seconds) return <audio src={url} controls aria-label={name} />;
  const suffix = name.split(".").at(-1)!.toUpperCase();
  return (
    <p class="tile">
      <strong>{suffix}</strong>
      {kind !== "document" && <span class="faint">{t("This browser does not show it; the server reads it.")}</span>}
    </p>
  );
}

interface DocumentProps {
  media: Media;
  url: string;
  pages: MediumUsage[];
  onClose: () => void;
}

// A document in the browser's own viewer, beside what the model saw of each page.
function Document({ media, url, pages, onClose }: DocumentProps) {
  return (
    <Dialog title={media.name} onClose={onClose}>
      <div class="document">
        <iframe src={url} title={media.name} />
        <div>
          <a href={url} target="_blank" rel="noopener">
            {t("Open in a tab")}
          </a>
          <ol class="pages">
            {pages.map((page, index) => (
              <li key={index}>{describeSeen(page)}</li>
            ))}
          </ol>
        </div>
      </div>
    </Dialog>
  );
}

interface Props {
  found: Grounding[];
  image: Media;
  seen: SeenImage | undefined;
}

export function Groundings({ found, image, seen }: Props) {
  if (!found.length || !seen) return null;
  const isTurned = seen.orientation >= 5;
  const [width, height] = isTurned ? [seen.height, seen.width] : [seen.width, seen.height];
  const url = objectUrl(image);
  return (
    <figure class="boxes">
      <div class={image.width ? "canvas" : "canvas blank"}>
        {image.width > 0 && url && <img src={url} alt={t("{name} with {count} marked objects", { name: image.name, count: found.length })} />}
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
              {each.label || t("object")} <span class="faint">{describe(each)}</span>
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
  return `${left}, ${top} – ${right}, ${bottom}`;
}
