// A schema of the OpenAPI document: its fields as a list, those of objects within on request.
import { useState } from "preact/hooks";
import { Prose } from "./prose";

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  minimum?: number;
  maximum?: number;
  minItems?: number;
  maxItems?: number;
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  items?: Schema;
  allOf?: Schema[];
  anyOf?: Schema[];
  oneOf?: Schema[];
}

export type Schemas = Record<string, Schema>;

interface Field {
  name: string;
  schema: Schema;
  isRequired: boolean;
}

const nameOf = (ref: string): string => ref.slice(ref.lastIndexOf("/") + 1);

function resolve(schema: Schema, schemas: Schemas): Schema {
  return schema.$ref ? (schemas[nameOf(schema.$ref)] ?? {}) : schema;
}

const alternativesOf = (schema: Schema): Schema[] => schema.anyOf ?? schema.oneOf ?? [];
const isNull = (schema: Schema): boolean => schema.type === "null";

// The fields of an object, those of what it is composed of included.
function fieldsOf(schema: Schema, schemas: Schemas): Field[] {
  const own = resolve(schema, schemas);
  const required = new Set(own.required);
  const fields = Object.entries(own.properties ?? {}).map(([name, each]) => ({
    name,
    schema: each,
    isRequired: required.has(name),
  }));
  return [...(own.allOf ?? []).flatMap((each) => fieldsOf(each, schemas)), ...fields];
}

// The type of a value in a few words, such as "list of Message".
function typeOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum?.every((value) => value === null)) return "refused";
  if (schema.enum) return schema.enum.filter((value) => value !== null).map((value) => JSON.stringify(value)).join(" or ");
  if (schema.allOf) return schema.allOf.map(typeOf).join(" with ");
  const alternatives = alternativesOf(schema).filter((each) => !isNull(each));
  if (alternatives.length) return [...new Set(alternatives.map(typeOf))].join(" or ");
  const types = [schema.type ?? "any"].flat().filter((type) => type !== "null");
  return types.map((type) => (type === "array" && schema.items ? `list of ${typeOf(schema.items)}` : type)).join(" or ");
}

// The name of a schema, or what its member `type` says.
function titleOf(schema: Schema): string {
  const kind = schema.properties?.type?.const;
  return schema.$ref ? nameOf(schema.$ref) : typeof kind === "string" ? kind : "fields";
}

// The schemas with fields that a value may have.
function objectsIn(schema: Schema, schemas: Schemas): { name: string; schema: Schema }[] {
  if (schema.items) return objectsIn(schema.items, schemas);
  const parts = [...alternativesOf(schema), ...alternativesOf(resolve(schema, schemas))];
  const own = fieldsOf(schema, schemas).length ? [{ name: titleOf(schema), schema }] : [];
  return [...own, ...parts.filter((each) => !isNull(each)).flatMap((each) => objectsIn(each, schemas))];
}

function bounds({ minimum, maximum, minItems, maxItems, default: value }: Schema): string {
  const rows: [string, unknown][] = [
    ["from", minimum],
    ["to", maximum],
    ["at least", minItems],
    ["at most", maxItems],
    ["default", value ?? undefined],
  ];
  return rows.filter(([, each]) => each !== undefined).map(([name, each]) => `${name} ${JSON.stringify(each)}`).join(", ");
}

interface FieldsProps {
  schema: Schema;
  schemas: Schemas;
}

const isRefused = ({ schema }: Field): boolean => schema.description?.startsWith("Not supported") ?? false;

export function Fields({ schema, schemas }: FieldsProps) {
  const fields = fieldsOf(schema, schemas);
  const refused = fields.filter(isRefused);
  return (
    <>
      <FieldList fields={fields.filter((field) => !isRefused(field))} schemas={schemas} />
      {refused.length > 0 && (
        <details class="refused">
          <summary>Not supported: {refused.length} fields of other servers</summary>
          <FieldList fields={refused} schemas={schemas} />
        </details>
      )}
    </>
  );
}

function FieldList({ fields, schemas }: { fields: Field[]; schemas: Schemas }) {
  return (
    <ul class="fields">
      {fields.map((field) => (
        <li key={field.name}>
          <code class="name">{field.name}</code> <span class="type">{typeOf(field.schema)}</span>
          {field.isRequired && <span class="required"> required</span>}
          <span class="faint"> {bounds(field.schema)}</span>
          <Prose text={field.schema.description ?? resolve(field.schema, schemas).description ?? ""} />
          {objectsIn(field.schema, schemas).map((each) => (
            <Nested key={each.name} name={each.name} schema={each.schema} schemas={schemas} />
          ))}
        </li>
      ))}
    </ul>
  );
}

// Schemas contain one another, so their fields are made when they are asked for.
function Nested({ name, schema, schemas }: FieldsProps & { name: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>{name}</summary>
      {isOpen && <Fields schema={schema} schemas={schemas} />}
    </details>
  );
}

export function TopLevel({ schema, schemas }: FieldsProps) {
  const objects = objectsIn(schema, schemas);
  const composed = schema.allOf ? [{ name: "", schema }] : objects;
  if (!composed.length) return <p>{typeOf(schema)}</p>;
  return (
    <>
      {composed.map((each) => (
        <section key={each.name}>
          {composed.length > 1 && <h4>{each.name}</h4>}
          <Fields schema={each.schema} schemas={schemas} />
        </section>
      ))}
    </>
  );
}
