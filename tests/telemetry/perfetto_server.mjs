// Perfetto's trace processor, as the web assembly of its own user interface, behind a Unix socket: the bytes that
// PyPI `perfetto` sends go to the module, the module's replies go back.
//
// node perfetto_server.mjs WEB_DIST/VERSION TRACE SOCKET; prints "ready" once the trace is loaded.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import vm from "node:vm";

const [directory, trace, socket] = process.argv.slice(2);

// What the worker of the user interface has, and node has not.
globalThis.self = globalThis;
globalThis.location = { href: `file://${directory}/engine_bundle.js` };
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
globalThis.importScripts = () => {};
process.type = "renderer"; // or the module sees node and refuses
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.response = new Uint8Array(fs.readFileSync(path.join(directory, path.basename(name)))).buffer;
    this.status = 200;
  }
  send() {}
};
console.warn = () => {}; // it tells how large its memory is

const bundle = path.join(directory, "engine_bundle.js");
vm.runInThisContext(fs.readFileSync(bundle, "utf8"), { filename: bundle });

let client = null;
const port = { postMessage: (reply) => client?.write(reply) };
self.onmessage({ data: port });

// The few fields of TraceProcessorRpcStream that load a trace.
const APPEND = 1;
const FINALIZE = 2;
const varint = (value) => {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
};
const field = (number, bytes) => Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
const request = (method, ...fields) =>
  field(1, Buffer.concat([varint(2 * 8), varint(method), ...fields]));
const send = (bytes) => port.onmessage({ data: new Uint8Array(bytes) });

setTimeout(() => {
  send(request(APPEND, field(101, fs.readFileSync(trace))));
  send(request(FINALIZE));
  const server = net.createServer((connection) => {
    client = connection;
    connection.on("data", send);
    connection.on("error", () => {}); // it left before its answer
  });
  server.listen(socket, () => console.log("ready"));
});
