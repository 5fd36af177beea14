// The API reference, rendered from the gateway's OpenAPI document.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Prose } from "./prose";
import { TopLevel, type Schema, type Schemas } from "./schema";
import { ThemeSwitch } from "./theme";

interface Content {
  schema: Schema & { contentSchema?: Schema };
}

interface Operation {
  operationId: string;
  description?: string;
  parameters?: { name: string; in: string; description?: string; required?: boolean }[];
  requestBody?: { content: Record<string, Content> };
  responses: Record<string, { description: string; content?: Record<string, Content> }>;
}

interface Document {
  info: { title: string; version: string; description: string };
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Schemas };
}

function Reference() {
  const [document, setDocument] = useState<Document | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = async (): Promise<void> => {
      try {
        setDocument(await (await fetch("/openapi.json")).json());
      } catch {
        setProblem("The gateway cannot be reached. Reload the page once it runs.");
      }
    };
    void load();
  }, []);
  return (
    <>
      <header>
        <h1>Glimpse API</h1>
        <span class="space" />
        <nav aria-label="Pages">
          <a href="/">Playground</a> <a href="/openapi.json">openapi.json</a>
        </nav>
        <ThemeSwitch />
      </header>
      <main class="reference">
        {problem && (
          <p class="error" role="alert">
            {problem}
          </p>
        )}
        {document && <Operations document={document} />}
      </main>
    </>
  );
}

function Operations({ document }: { document: Document }) {
  const operations = Object.entries(document.paths).flatMap(([path, verbs]) =>
    Object.entries(verbs).map(([verb, operation]) => ({ path, verb: verb.toUpperCase(), operation })),
  );
  return (
    <>
      <nav aria-label="Operations" class="contents">
        <ul>
          {operations.map(({ path, verb, operation }) => (
            <li key={operation.operationId}>
              <a href={`#${operation.operationId}`}>
                {verb} {path}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="operations">
        <Prose text={document.info.description} />
        <p>Version {document.info.version}</p>
        {operations.map((each) => (
          <OperationSection key={each.operation.operationId} {...each} schemas={document.components.schemas} />
        ))}
      </div>
    </>
  );
}

interface OperationProps {
  path: string;
  verb: string;
  operation: Operation;
  schemas: Schemas;
}

function OperationSection({ path, verb, operation, schemas }: OperationProps) {
  const { operationId, description, parameters, requestBody, responses } = operation;
  return (
    <section id={operationId} aria-labelledby={`${operationId}-title`}>
      <h2 id={`${operationId}-title`}>
        <code>
          {verb} {path}
        </code>
      </h2>
      <Prose text={description ?? ""} />
      <pre tabIndex={0} aria-label="Example">
        {example(path, verb)}
      </pre>
      {parameters && (
        <ul class="fields">
          {parameters.map((parameter) => (
            <li key={parameter.name}>
              <code class="name">{parameter.name}</code> <span class="faint">in the {parameter.in}</span>
              <Prose text={parameter.description ?? ""} />
            </li>
          ))}
        </ul>
      )}
      {requestBody && <Body title="Request" content={requestBody.content} schemas={schemas} />}
      {Object.entries(responses).map(([status, response]) => (
        <Body
          key={status}
          title={status === "default" ? "Error" : `Response ${status}`}
          content={response.content ?? {}}
          schemas={schemas}
        />
      ))}
    </section>
  );
}

function Body({ title, content, schemas }: { title: string; content: Record<string, Content>; schemas: Schemas }) {
  return (
    <>
      {Object.entries(content).map(([type, { schema }]) => (
        <details key={type} open={title === "Request"}>
          <summary>
            {title}: <code>{type}</code>
          </summary>
          {schema.contentSchema && <Prose text={schema.description ?? ""} />}
          <TopLevel schema={schema.contentSchema ?? schema} schemas={schemas} />
        </details>
      ))}
    </>
  );
}

const MESSAGES = [{ role: "user", content: "Hello!" }];
const BODIES: Record<string, object> = {
  "/v1/chat/completions": { messages: MESSAGES },
  "/v1/completions": { prompt: "Once upon a time" },
  "/v1/embeddings": { input: "a red circle" },
  "/v1/rerank": { query: "What is red?", documents: ["a red circle", "a blue square"] },
  "/v1/score": { queries: "What is red?", documents: ["a red circle"] },
  "/tokenize": { prompt: "Hello!" },
  "/detokenize": { tokens: [1, 2, 3] },
};

function example(path: string, verb: string): string {
  const url = `${location.origin}${path}`;
  if (verb === "GET") return `curl -s ${url}`;
  return `curl -s ${url} -H 'content-type: application/json' -d '${JSON.stringify(BODIES[path] ?? {})}'`;
}

render(<Reference />, document.body);
