// Asks over OpenAI's API with the openai package: node openai.mjs [--stream] QUESTION [IMAGE]
// GLIMPSE_URL overrides the gateway's address.
import { existsSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import OpenAI from "openai";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { stream: { type: "boolean" } } });
const [question, image] = positionals;
if (!question) {
  console.error("usage: openai.mjs [--stream] QUESTION [IMAGE]");
  process.exit(2);
}
if (image && !existsSync(image)) {
  console.error(`cannot read ${image}`);
  process.exit(2);
}

const baseURL = process.env.GLIMPSE_URL ?? "http://127.0.0.1:8080/v1";
const client = new OpenAI({ baseURL, apiKey: "none" });
const content = [{ type: "text", text: question }];
if (image) {
  const url = `data:image/png;base64,${readFileSync(image).toString("base64")}`;
  content.unshift({ type: "image_url", image_url: { url } });
}

try {
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
    console.log();
  } else {
    const completion = await client.chat.completions.create(request);
    console.log(completion.choices[0].message.content);
  }
} catch (error) {
  console.error(`no answer from ${baseURL}: ${error.message}\nIs the server running? \`make up\` starts one.`);
  process.exitCode = 1;
}
