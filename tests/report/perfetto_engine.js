// What Perfetto's own trace processor makes of a trace: node perfetto_engine.js ENGINE TRACE SQL... prints JSON, an answer for each query.
// ENGINE is the folder of a release of Perfetto's UI, which runs the processor as WebAssembly in a worker. A request is one message of
// TraceProcessorRpcStream (protos/perfetto/trace_processor/trace_processor.proto); only what is needed of it is written and read here.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const [engine, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3, STATUS = 10; // TraceProcessorMethod
const CHUNK = 1 << 24;

// -- a worker of a browser, as far as the engine needs one --------------------------------------------------------

const read = (name) => fs.readFileSync(path.join(engine, path.basename(name)));
class XMLHttpRequest {
  open(_, url) { this.url = url; }
  send() {
    const { buffer, byteOffset, length } = read(this.url);
    this.response = buffer.slice(byteOffset, byteOffset + length);
  }
}
const said = [];
const realm = { XMLHttpRequest, setTimeout, clearTimeout, performance, TextDecoder, TextEncoder, URL };
Object.assign(realm, { self: realm, location: { href: "http://engine/" }, WorkerGlobalScope() {}, importScripts() {} });
realm.console = { log: () => {}, warn: (text) => said.push(text), error: (text) => said.push(text) };
vm.createContext(realm);
vm.runInContext(read("engine_bundle.js").toString(), realm, { filename: "engine_bundle.js" });
const Bytes = vm.runInContext("Uint8Array", realm);
const replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
realm.onmessage({ data: port });

// -- protobuf -------------------------------------------------------------------------------------------------------

const varint = (value) => {
  const bytes = [];
  for (let left = BigInt(value); ; left >>= 7n) {
    bytes.push(Number(left & 127n) | (left > 127n ? 128 : 0));
    if (left <= 127n) return Buffer.from(bytes);
  }
};
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* fields(message) {
  let at = 0;
  const next = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = message[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, value);
    }
  };
  while (at < message.length) {
    const tag = Number(next()), field = tag >> 3, kind = tag & 7;
    if (kind === 0) yield [field, next()];
    else if (kind === 2) {
      const length = Number(next());
      yield [field, message.subarray(at, (at += length))];
    } else if (kind === 1) yield [field, message.subarray(at, (at += 8))];
    else throw new Error(`wire type ${kind}`);
  }
}
const packed = (message) => {
  const values = [];
  for (let at = 0, value = 0n, shift = 0n; at < message.length; at++) {
    value |= BigInt(message[at] & 127) << shift;
    shift += 7n;
    if (message[at] < 128) {
      values.push(BigInt.asIntN(64, value));
      value = shift = 0n;
    }
  }
  return values;
};

// -- requests and answers -------------------------------------------------------------------------------------------

let sequence = 0;
const ask = (method, ...more) => {
  const message = Buffer.concat([number(1, ++sequence), number(2, method), ...more]);
  port.onmessage({ data: new Bytes(bytes(1, message)) });
};

function answer(query) {
  replies.length = 0;
  ask(QUERY, bytes(103, bytes(1, Buffer.from(query))));
  const columns = [], cells = [];
  let error = null;
  for (const [, message] of fields(Buffer.concat(replies))) {
    for (const [field, result] of fields(message)) {
      if (field !== 203) continue;
      for (const [part, value] of fields(result)) {
        if (part === 1) columns.push(value.toString());
        else if (part === 2) error = value.toString();
        else if (part === 3) cells.push(...batch(value));
      }
    }
  }
  if (error) throw new Error(`${query}: ${error}`);
  const rows = [];
  for (let i = 0; i < cells.length; i += columns.length) rows.push(cells.slice(i, i + columns.length));
  return rows;
}

function batch(message) {
  const held = new Map();
  for (const [field, value] of fields(message)) held.set(field, value);
  const integers = packed(held.get(2) ?? Buffer.alloc(0)), floats = held.get(3) ?? Buffer.alloc(0);
  const texts = (held.get(5) ?? Buffer.alloc(0)).toString().split("\0");
  let float = 0, integer = 0, text = 0;
  return packed(held.get(1) ?? Buffer.alloc(0)).map((kind) => {
    if (kind === 2n) return Number(integers[integer++]);
    if (kind === 3n) return floats.readDoubleLE(8 * float++);
    return kind === 4n ? texts[text++] : null;
  });
}

// The engine says nothing when it is ready: until its memory is there, a request fails and changes nothing.
function start(tries) {
  try {
    ask(STATUS);
  } catch (failure) {
    if (tries > 0) return setTimeout(start, 50, tries - 1);
    throw failure;
  }
  const whole = fs.readFileSync(trace);
  for (let at = 0; at < whole.length; at += CHUNK) ask(APPEND, bytes(101, whole.subarray(at, at + CHUNK)));
  ask(FINALIZE);
  process.stdout.write(`${JSON.stringify(queries.map(answer))}\n`, () => process.exit(0));
}

process.on("uncaughtException", (failure) => {
  const lines = failure.stack.split("\n").filter((line) => line.length < 300); // the engine is one line of code
  process.stderr.write([...lines, ...said].join("\n") + "\n", () => process.exit(1));
});
setTimeout(start, 50, 600);
