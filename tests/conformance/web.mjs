// Answers requests of test_web.py: each line of standard input is a call of a network, in JSON with base64.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { open } from "../../build/web/lnrnn.js";

const lnrnn = await open(readFileSync(new URL("../../build/web/lnrnn.wasm", import.meta.url)));
const bytes = text => Uint8Array.from(Buffer.from(text, "base64"));
const floats = text => (text == null ? null : new Float32Array(bytes(text).buffer));
const text = array => (array ? Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("base64") : null);

// Steps a stream of all sequences, which have `steps` steps.
function streamed(network, x, sequences) {
  const stream = network.stream({ lanes: sequences }), size = sequences * network.inputs, y = [];
  for (let at = 0; at < x.length; at += size) y.push(...stream.step(x.subarray(at, at + size)));
  stream.free();
  return { y: Float32Array.from(y) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { model, x, stream, h, c, resets, ...options } = JSON.parse(line);
  const network = lnrnn.load(bytes(model)), all = { ...options, h: floats(h), c: floats(c), resets: resets && bytes(resets) };
  const got = stream ? streamed(network, floats(x), options.sequences) : network.call(floats(x), all);
  console.log(JSON.stringify({ y: text(got.y), h: text(got.h), c: text(got.c) }));
  network.free();
}
