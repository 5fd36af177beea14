// A text of the OpenAPI document: paragraphs, and code between backquotes.

export function Prose({ text }: { text: string }) {
  return (
    <>
      {text
        .trim()
        .split(/\n{2,}/)
        .filter(Boolean)
        .map((paragraph, index) => (
          <p key={index}>
            {paragraph.split("`").map((piece, place) => (place % 2 ? <code key={place}>{piece}</code> : piece))}
          </p>
        ))}
    </>
  );
}
