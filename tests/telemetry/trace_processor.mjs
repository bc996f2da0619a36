#!/usr/bin/env node
// Perfetto's trace processor, as its user interface runs it (WebAssembly), behind the HTTP interface of
// trace_processor_shell: the Python package `perfetto` starts this file when it is given it as `bin_path`.
// PERFETTO_UI names the folder of the user interface, with engine_bundle.js.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { basename, join } from "node:path";

const UI = process.env.PERFETTO_UI;
// of perfetto/trace_processor/trace_processor.proto
const METHOD = { append: 1, finalize: 2, query: 3, status: 10 };
const REQUEST_FIELD = { append: 101, query: 103 };
const RESULT_FIELD = { append: 201, finalize: 212, query: 203, status: 210 };

// --- protobuf, as much of it as is needed ---

const varint = (value) => {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
};
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const message = (field, bytes) => Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);

function* fields(bytes) {
  let at = 0;
  const next = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (!(byte & 128)) return value;
    }
  };
  while (at < bytes.length) {
    const key = next();
    if (key % 8 === 0) yield [Math.floor(key / 8), next()];
    else if (key % 8 === 2) {
      const length = next();
      yield [Math.floor(key / 8), bytes.subarray(at, (at += length))];
    } else throw new Error(`unexpected wire type ${key % 8}`);
  }
}

// --- the engine: a web worker's script, given the few names of a web worker that it looks for ---

class FileRequest {
  open(_method, name) {
    this.name = name;
  }
  send() {
    const bytes = readFileSync(join(UI, basename(this.name)));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}
const worker = { location: { href: "http://localhost/engine_bundle.js" } };
const names = {
  self: worker,
  process: undefined,
  WorkerGlobalScope: Object,
  XMLHttpRequest: FileRequest,
  importScripts: () => {},
};
const script = readFileSync(join(UI, "engine_bundle.js"), "utf8");
new Function(...Object.keys(names), script)(...Object.values(names));
await new Promise((resolve) => setTimeout(resolve, 0));

const replies = [];
const port = { postMessage: (bytes) => replies.push(Buffer.from(bytes)) };
worker.onmessage({ data: port });

let sequence = 0;
function call(method, argument) {
  replies.length = 0;
  const parts = [number(1, ++sequence), number(2, METHOD[method])];
  if (argument) parts.push(message(REQUEST_FIELD[method], argument));
  port.onmessage({ data: new Uint8Array(message(1, Buffer.concat(parts))) });
  const results = [];
  for (const [, reply] of fields(Buffer.concat(replies)))
    for (const [field, value] of fields(reply)) if (field === RESULT_FIELD[method]) results.push(value);
  return Buffer.concat(results); // parts of one protobuf message, one after the other, are that message
}

const answers = {
  "/status": () => call("status"),
  "/parse": (body) => call("append", body),
  "/notify_eof": () => call("finalize"),
  "/query": (body) => call("query", body),
};
createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const answer = answers[request.url];
    response.writeHead(answer ? 200 : 404);
    response.end(answer ? answer(Buffer.concat(chunks)) : undefined);
  });
}).listen(Number(process.argv[process.argv.indexOf("--http-port") + 1]), "127.0.0.1");
