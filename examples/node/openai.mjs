// Asks through Envoy with the OpenAI client: node openai.mjs [--stream] QUESTION [PICTURE]
// GLIMPSE_URL overrides the address.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import OpenAI from "openai";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { stream: { type: "boolean" } } });
const [question, picture] = positionals;

const client = new OpenAI({ baseURL: process.env.GLIMPSE_URL ?? "http://127.0.0.1:8080/v1", apiKey: "none" });
const content = [{ type: "text", text: question }];
if (picture) {
  const url = `data:image/png;base64,${readFileSync(picture).toString("base64")}`;
  content.unshift({ type: "image_url", image_url: { url } });
}
const { data: models } = await client.models.list();
const request = {
  model: models[0].id,
  messages: [{ role: "user", content }],
  temperature: 0,
  max_completion_tokens: 64,
};

if (values.stream) {
  const stream = await client.chat.completions.create({ ...request, stream: true });
  for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
} else {
  const completion = await client.chat.completions.create(request);
  process.stdout.write(completion.choices[0].message.content);
}
