// Anthropic's client: its plain functions, its streaming helper.
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { z } from "zod";
import { drive, Shapes, WEATHER, Weather } from "./driver.mjs";

const client = ({ url }) => new Anthropic({ baseURL: url.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
const messages = (task) => client(task).messages;
const tools = [{ ...WEATHER, input_schema: z.toJSONSchema(Weather) }];

function request({ model, max_tokens, question, image }) {
  const source = { type: "base64", media_type: "image/png", data: image.split(",")[1] };
  const content = image ? [{ type: "image", source }, { type: "text", text: question }] : question;
  return { model, messages: [{ role: "user", content }], temperature: 0, max_tokens };
}

const textOf = ({ content }) => content.map((block) => block.text ?? "").join("");
const usesOf = ({ content }) => content.filter((block) => block.type === "tool_use");
const callsOf = (message) => usesOf(message).map(({ name, input }) => ({ name, arguments: input }));

async function plain(task) {
  return { text: textOf(await messages(task).create(request(task))) };
}

async function streamed(task) {
  const pieces = [];
  for await (const event of await messages(task).create({ ...request(task), stream: true })) {
    pieces.push(event.delta?.text ?? "");
  }
  return { pieces };
}

async function tool(task) {
  const asked = { ...request(task), tools };
  const message = await messages(task).create(asked);
  const results = usesOf(message).map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: task.forecast }));
  const conversation = [
    ...asked.messages,
    { role: "assistant", content: message.content },
    { role: "user", content: results },
  ];
  return { text: textOf(await messages(task).create({ ...asked, messages: conversation })), calls: callsOf(message) };
}

async function streamedTool(task) {
  return { calls: callsOf(await messages(task).stream({ ...request(task), tools }).finalMessage()) };
}

async function schema(task) {
  // Not by `parse`, which takes the bounds of numbers out of the schema.
  const format = { type: "json_schema", schema: z.toJSONSchema(Shapes) };
  const message = await messages(task).create({ ...request(task), output_config: { format } });
  return { value: Shapes.parse(JSON.parse(textOf(message))) };
}

// Asks about a PDF file, which the task has in place of an image.
async function document(task) {
  const source = { type: "base64", media_type: "application/pdf", data: task.image.split(",")[1] };
  const content = [{ type: "document", source }, { type: "text", text: task.question }];
  return { text: textOf(await messages(task).create({ ...request(task), messages: [{ role: "user", content }] })) };
}

// Uploads the image twice, finds both by pages of one, asks about it by its id, and deletes them.
async function files(task) {
  const { files } = client(task);
  const image = Buffer.from(task.image.split(",")[1], "base64");
  const uploaded = [];
  for (const name of ["1.png", "2.png"]) {
    uploaded.push(await files.upload({ file: await toFile(image, name, { type: "image/png" }) }));
  }
  const ids = uploaded.map(({ id }) => id);
  const found = [];
  for await (const { id } of files.list({ limit: 1 })) found.push(id);
  if (!ids.every((id) => found.includes(id))) throw new Error(`not all of ${ids} are in ${found}`);
  const content = [
    { type: "image", source: { type: "file", file_id: ids[0] } },
    { type: "text", text: task.question },
  ];
  const message = await messages(task).create({ ...request(task), messages: [{ role: "user", content }] });
  for (const id of ids) await files.delete(id);
  return { text: textOf(message) };
}

await drive({ plain, streamed, image: plain, tool, streamed_tool: streamedTool, schema, document, files });
