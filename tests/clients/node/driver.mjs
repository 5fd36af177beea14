// Drives a client: reads a task as a line of JSON and writes the outcome as a line of JSON.
import { createInterface } from "node:readline";
import { z } from "zod";

// The content of an image. The schema keeps every answer short.
export const Shapes = z.object({
  colour: z.enum(["red", "green", "blue"]),
  count: z.number().int().min(0).max(9),
  round: z.boolean(),
});

export const WEATHER = { name: "weather", description: "The weather of a city in the next days." };
export const Weather = z.object({ city: z.string(), days: z.number().int() });

// Runs the function that each line of standard input names.
export async function drive(asks) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { ask, task } = JSON.parse(line);
    const outcome = await asks[ask](task).catch((error) => ({ error: error.stack, cause: error.cause?.message }));
    process.stdout.write(`${JSON.stringify(outcome)}\n`);
  }
}
