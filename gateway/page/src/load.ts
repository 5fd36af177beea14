// The server's load reports, live: `glimpse.v1.LoadService.StreamLoadReports` over grpc-web. The two messages are small
// enough to be read here.
import { authorization } from "./api";

export interface Load {
  running: number;
  waiting: number;
  // The fraction of the KV cache in use.
  cache: number;
}

const NAMED_METRICS = 8;
const TRAILERS = 0x80;
const FRAME_HEADER = 5;

// Yields a report a second until the signal. Throws if there are none.
export async function* loadReports(signal: AbortSignal): AsyncGenerator<Load> {
  const headers = { "content-type": "application/grpc-web+proto", ...authorization() };
  const body = new Uint8Array(FRAME_HEADER);
  const path = "/glimpse.v1.LoadService/StreamLoadReports";
  const response = await fetch(path, { method: "POST", headers, body, signal });
  if (!response.ok || !response.body) throw new Error(`no load reports: status ${response.status}`);
  for await (const { flags, message } of frames(response.body.getReader())) {
    if (flags & TRAILERS) return;
    yield readReport(message);
  }
}

interface Frame {
  flags: number;
  message: Uint8Array;
}

async function* frames(reader: ReadableStreamDefaultReader<Uint8Array>): AsyncGenerator<Frame> {
  let rest = new Uint8Array();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    rest = bytes;
    while (rest.length >= FRAME_HEADER) {
      const end = FRAME_HEADER + new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      if (rest.length < end) break;
      yield { flags: rest[0]!, message: rest.slice(FRAME_HEADER, end) };
      rest = rest.slice(end);
    }
  }
}

function readReport(message: Uint8Array): Load {
  const metrics: Record<string, number> = {};
  for (const [field, value] of fields(message)) {
    if (field !== NAMED_METRICS || typeof value === "number") continue;
    const entry = new Map(fields(value));
    const name = entry.get(1);
    const number = entry.get(2);
    if (name instanceof Uint8Array) metrics[new TextDecoder().decode(name)] = typeof number === "number" ? number : 0;
  }
  return {
    running: metrics.num_requests_running ?? 0,
    waiting: metrics.num_requests_waiting ?? 0,
    cache: metrics.kv_cache_usage_perc ?? 0,
  };
}

const VARINT = 0;
const FIXED64 = 1;
const LENGTH_DELIMITED = 2;

// Yields the fields of a protobuf message: doubles as numbers, others that have a length as bytes.
function* fields(bytes: Uint8Array): Generator<[number, number | Uint8Array]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let position = 0;
  const varint = (): number => {
    let value = 0;
    for (let shift = 1; ; shift *= 128) {
      const byte = bytes[position++]!;
      value += (byte & 127) * shift;
      if (byte < 128) return value;
    }
  };
  while (position < bytes.length) {
    const key = varint();
    const field = key >> 3;
    switch (key & 7) {
      case VARINT:
        yield [field, varint()];
        break;
      case FIXED64:
        yield [field, view.getFloat64(position, true)];
        position += 8;
        break;
      case LENGTH_DELIMITED: {
        const length = varint();
        yield [field, bytes.subarray(position, position + length)];
        position += length;
        break;
      }
      default:
        throw new Error("a load report has an unknown wire type");
    }
  }
}
