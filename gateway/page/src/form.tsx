// An answer that had to match a JSON Schema, as a form: its values under the titles of the schema.
import type { ComponentChildren } from "preact";
import { CopyButton } from "./copy";
import { t } from "./text";

interface Schema {
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  items?: Schema;
}

const MAX_DEPTH = 16;

// The value of a JSON text; undefined if it is none, such as one that was cut.
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function Form({ text, value, schema }: { text: string; value: unknown; schema: string }) {
  const root = parsed(schema);
  return (
    <div class="text form">
      <Value value={value} schema={isObject(root) ? root : {}} depth={0} />
      <details>
        <summary>JSON</summary>
        <div class="actions">
          <span class="space" />
          <CopyButton text={text} />
        </div>
        <pre tabIndex={0} aria-label="JSON">
          {JSON.stringify(value, null, 2)}
        </pre>
      </details>
    </div>
  );
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

function Value({ value, schema, depth }: { value: unknown; schema: Schema; depth: number }): ComponentChildren {
  if (depth > MAX_DEPTH) return JSON.stringify(value);
  if (Array.isArray(value)) {
    if (!value.length) return <span class="faint">{t("none")}</span>;
    return (
      <ol>
        {value.map((each, index) => (
          <li key={index}>
            <Value value={each} schema={schema.items ?? {}} depth={depth + 1} />
          </li>
        ))}
      </ol>
    );
  }
  if (isObject(value)) {
    return (
      <dl>
        {Object.entries(value).map(([name, each]) => {
          const own = schema.properties?.[name] ?? {};
          return (
            <div key={name} title={own.description}>
              <dt>{own.title ?? name}</dt>
              <dd>
                <Value value={each} schema={own} depth={depth + 1} />
              </dd>
            </div>
          );
        })}
      </dl>
    );
  }
  if (typeof value === "boolean") return value ? t("yes") : t("no");
  return value === null ? <span class="faint">{t("none")}</span> : String(value);
}
