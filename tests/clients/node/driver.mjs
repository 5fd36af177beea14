// How a client is driven: a line of JSON says what to ask, a line of JSON says what came of it.
import { createInterface } from "node:readline";
import { z } from "zod";

// What is seen in a picture. Every answer of this form is short, whichever model gives it.
export const Shapes = z.object({
  colour: z.enum(["red", "green", "blue"]),
  count: z.number().int().min(0).max(9),
  round: z.boolean(),
});

export const WEATHER = { name: "weather", description: "The weather of a city in the next days." };
export const Weather = z.object({ city: z.string(), days: z.number().int() });

// Answers each line of the standard input by the function that it names.
export async function drive(asks) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { ask, task } = JSON.parse(line);
    const outcome = await asks[ask](task).catch((error) => ({ error: error.stack, cause: error.cause?.message }));
    process.stdout.write(`${JSON.stringify(outcome)}\n`);
  }
}
