// openai-node: its plain functions, its streaming helper, its parsing helper, and its helper that runs tools.
import { deepStrictEqual as deepEqual } from "node:assert";
import OpenAI, { toFile } from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { drive, Shapes, WEATHER, Weather } from "./driver.mjs";

const completions = ({ url }) => new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 }).chat.completions;

function request({ model, max_tokens, question, image }) {
  const content = image ? [{ type: "image_url", image_url: { url: image } }, { type: "text", text: question }] : question;
  return { model, messages: [{ role: "user", content }], temperature: 0, max_tokens };
}

async function plain(task) {
  const completion = await completions(task).create(request(task));
  return { text: completion.choices[0].message.content };
}

async function streamed(task) {
  const pieces = [];
  for await (const chunk of await completions(task).create({ ...request(task), stream: true })) {
    pieces.push(chunk.choices[0].delta.content ?? "");
  }
  return { pieces };
}

async function tool(task) {
  const calls = [];
  const weather = (parameters) => {
    calls.push({ name: WEATHER.name, arguments: parameters });
    return task.forecast;
  };
  const tools = [zodFunction({ ...WEATHER, parameters: Weather, function: weather })];
  const runner = completions(task).runTools({ ...request(task), tools });
  return { text: await runner.finalContent(), calls };
}

async function streamedTool(task) {
  const tools = [zodFunction({ ...WEATHER, parameters: Weather })];
  const { choices } = await completions(task).stream({ ...request(task), tools }).finalChatCompletion();
  const calls = choices[0].message.tool_calls.map((call) => call.function);
  return { calls: calls.map(({ name, parsed_arguments }) => ({ name, arguments: parsed_arguments })) };
}

async function schema(task) {
  const response_format = zodResponseFormat(Shapes, "shapes");
  const completion = await completions(task).parse({ ...request(task), response_format });
  return { value: completion.choices[0].message.parsed };
}

// Uploads the image, asks about it by its id, and deletes it.
async function files(task) {
  const client = new OpenAI({ baseURL: task.url, apiKey: "none", maxRetries: 0 });
  const data = Buffer.from(task.image.split(",")[1], "base64");
  const created = await client.files.create({ file: await toFile(data, "image.png"), purpose: "vision" });
  deepEqual(await client.files.retrieve(created.id), created);
  const ids = [];
  for await (const each of client.files.list({ purpose: "vision", limit: 1 })) ids.push(each.id);
  deepEqual(ids.includes(created.id), true);
  deepEqual(Buffer.from(await (await client.files.content(created.id)).arrayBuffer()), data);
  const content = [{ type: "file", file: { file_id: created.id } }, { type: "text", text: task.question }];
  const completion = await completions(task).create({ ...request(task), messages: [{ role: "user", content }] });
  deepEqual((await client.files.delete(created.id)).deleted, true);
  return { text: completion.choices[0].message.content };
}

// Has a question about the image answered by a batch, and a request that fails beside it.
async function batches(task) {
  const client = new OpenAI({ baseURL: task.url, apiKey: "none", maxRetries: 0 });
  const body = request(task);
  const lines = Object.entries({ good: body, bad: { ...body, model: "another" } }).map(([custom_id, each]) =>
    JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body: each }),
  );
  const file = await toFile(Buffer.from(lines.join("\n")), "requests.jsonl");
  const { id: input_file_id } = await client.files.create({ file, purpose: "batch" });
  const created = { input_file_id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  let batch = await client.batches.create(created);
  const ids = [];
  for await (const each of client.batches.list({ limit: 1 })) ids.push(each.id);
  deepEqual(ids.includes(batch.id), true);
  while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  deepEqual(batch.status, "completed");
  deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 });
  const [answer, error] = await Promise.all(
    [batch.output_file_id, batch.error_file_id].map(async (id) => (await client.files.content(id)).json()),
  );
  deepEqual([answer.custom_id, error.custom_id, error.response.status_code], ["good", "bad", 404]);
  const refused = await client.batches.cancel(batch.id).catch((reason) => reason);
  deepEqual(refused.code, "batch_ended");
  return { text: answer.response.body.choices[0].message.content };
}

// Asks about a PDF file, which the task has in place of an image.
async function document(task) {
  const file = { filename: "scene.pdf", file_data: task.image };
  const content = [{ type: "file", file }, { type: "text", text: task.question }];
  const completion = await completions(task).create({ ...request(task), messages: [{ role: "user", content }] });
  return { text: completion.choices[0].message.content };
}

await drive({ plain, streamed, image: plain, tool, streamed_tool: streamedTool, schema, files, batches, document });
