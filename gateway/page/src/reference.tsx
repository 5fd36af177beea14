// The API reference: the gateway's OpenAPI document in Swagger UI, with search and requests to try.
import DOMPurify from "dompurify";
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "./text";
import { applyRemembered, LanguageChoice, ThemeChoice } from "./theme";

interface Schema {
  description?: string;
  properties?: Record<string, Schema>;
}

interface Operation {
  tags?: string[];
  requestBody?: { content: Record<string, { example?: object }> };
}

interface Document {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}

const MESSAGES = [{ role: "user", content: "Hello!" }];
// Requests that work as they are. From the schema alone, Swagger UI would send every field.
const EXAMPLES: Record<string, object> = {
  "/v1/chat/completions": { messages: MESSAGES },
  "/v1/responses": { input: "Hello!" },
  "/v1/messages": { max_tokens: 64, messages: MESSAGES },
  "/v1/messages/count_tokens": { messages: MESSAGES },
  "/v1/completions": { prompt: "Once upon a time" },
  "/v1/embeddings": { input: "a red circle" },
  "/v1/rerank": { query: "What is red?", documents: ["a red circle", "a blue square"] },
  "/v1/score": { queries: "What is red?", documents: ["a red circle"] },
  "/tokenize": { prompt: "Hello!" },
  "/detokenize": { tokens: [1, 2, 3] },
};

// The document as it is shown: operations by the first part of their path, with an example; and of the fields that other
// servers have and this one refuses, the names alone.
function prepared(document: Document): Document {
  for (const [path, verbs] of Object.entries(document.paths)) {
    const example = EXAMPLES[path];
    for (const operation of Object.values(verbs)) {
      operation.tags = [path.replace(/^\/v1/, "").split("/")[1]!];
      for (const content of Object.values(operation.requestBody?.content ?? {})) if (example) content.example = example;
    }
  }
  for (const schema of Object.values(document.components.schemas)) {
    const fields = Object.entries(schema.properties ?? {});
    const refused = fields.filter(([, { description }]) => description?.startsWith("Not supported")).map(([name]) => name);
    for (const name of refused) delete schema.properties![name];
    if (refused.length) schema.description = `${schema.description ?? ""}\n\nFields of other servers that are refused: ${refused.join(", ")}.`;
  }
  return document;
}

// What Swagger UI passes to a filter: operations of a tag, as Immutable.js has them.
interface Tagged {
  get(name: "operations"): { filter(keep: (operation: Found) => boolean): { size: number } };
  set(name: "operations", value: object): Tagged;
}
interface Found {
  get(name: "path" | "method"): string;
  getIn(path: string[]): string | undefined;
}
interface TaggedOperations {
  map(change: (tagged: Tagged) => Tagged): { filter(keep: (tagged: { get(name: string): { size: number } }) => boolean): unknown };
}

// Finds operations by their path, verb, name and description.
function opsFilter(operations: TaggedOperations, phrase: string): unknown {
  const wanted = phrase.toLowerCase();
  const matches = (each: Found): boolean =>
    [each.get("method"), each.get("path"), each.getIn(["operation", "operationId"]), each.getIn(["operation", "description"])]
      .join(" ")
      .toLowerCase()
      .includes(wanted);
  return operations
    .map((tagged) => tagged.set("operations", tagged.get("operations").filter(matches)))
    .filter((tagged) => tagged.get("operations").size > 0);
}

// A component of Swagger UI, which is React's.
interface React {
  createElement(type: unknown, props: object | null, ...children: unknown[]): unknown;
}
type Wrapped = (original: unknown, system: { React: React }) => (props: Record<string, unknown>) => unknown;

// What Swagger UI lacks for screen readers: landmarks, a heading above the operations, a name of the field for bodies. An operation is a
// button; a link within it could not be reached.
const wrapComponents: Record<string, Wrapped> = {
  InfoContainer: (original, { React }) => (props) =>
    React.createElement("section", { "aria-label": t("API reference") }, React.createElement(original, props)),
  FilterContainer: (original, { React }) => (props) =>
    React.createElement("section", { "aria-label": t("Search") }, React.createElement("h2", { className: "unseen" }, t("Operations")), React.createElement(original, props)),
  TextArea: (original, { React }) => (props) => React.createElement(original, { "aria-label": t("Request body"), ...props }),
  DeepLink: (_, { React }) => ({ text }) => React.createElement("span", null, text),
};

function Reference() {
  const place = useRef<HTMLDivElement>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = async (): Promise<void> => {
      try {
        const [response, { default: SwaggerUI }] = await Promise.all([fetch("/openapi.json"), import("swagger-ui-dist/swagger-ui-es-bundle")]);
        SwaggerUI({
          spec: prepared(await response.json()),
          domNode: place.current!,
          deepLinking: true,
          docExpansion: "list",
          defaultModelsExpandDepth: -1,
          filter: true,
          tryItOutEnabled: true,
          displayRequestDuration: true,
          validatorUrl: null,
          syntaxHighlight: { activated: false },
          plugins: [{ fn: { opsFilter }, wrapComponents }],
        });
      } catch {
        setProblem(t("The server cannot be reached. Check that it runs and that this device is connected."));
      }
    };
    void load();
  }, []);
  return (
    <>
      <header>
        <strong>Glimpse API</strong>
        <nav aria-label={t("Pages")}>
          <a href="/">{t("Playground")}</a> <a href="/openapi.json">openapi.json</a>
        </nav>
        <span class="space" />
        <ThemeChoice />
        <LanguageChoice />
      </header>
      <div class="reference">
        {problem && (
          <p class="error" role="alert">
            {problem}
          </p>
        )}
        <div ref={place} />
      </div>
    </>
  );
}

// Swagger UI writes Markdown of descriptions as HTML. Whatever a script writes as HTML on this page is purified first.
interface TrustedTypes {
  createPolicy(name: string, rules: { createHTML(html: string): string }): unknown;
}
(window as { trustedTypes?: TrustedTypes }).trustedTypes?.createPolicy("default", { createHTML: (html) => DOMPurify.sanitize(html) });

void applyRemembered().then(() => render(<Reference />, document.body));
