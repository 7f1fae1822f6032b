// Tests of the package: `make wasm`, then node --test examples/web/lnrnn.test.mjs. They use networks of tests/data.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { gzipSync } from "node:zlib";
import { Lnrnn, LnrnnError, Status, open } from "../../build/web/lnrnn.js";

const file = name => readFileSync(new URL(`../../tests/data/rnn_${name}_schema1.safetensors`, import.meta.url));
const bytes = readFileSync(new URL("../../build/web/lnrnn.wasm", import.meta.url));
const module = new WebAssembly.Module(bytes), lnrnn = await open(module);
const plain = lnrnn.load(file("none")), D = plain.inputs, [H] = plain.widths;
// Replaces a text in the header of a file, and its length.
const edited = (whole, from, to) => {
  const text = new TextDecoder("latin1").decode(whole), other = text.slice(0, 8) + text.slice(8).replace(from, to);
  assert.notEqual(text, other);
  const bytes = Uint8Array.from(other, one => one.charCodeAt(0)), view = new DataView(bytes.buffer);
  view.setUint32(0, view.getUint32(0, true) + other.length - text.length, true);
  return bytes;
};
const wave = (n, at = 0) => Float32Array.from({ length: n }, (_, i) => Math.sin(at + i));
const refuses = (body, status, text) =>
  assert.throws(body, error => error instanceof LnrnnError && error.status === status && text.test(error.message)
    || assert.fail(`${error.name} ${error.status}: ${error.message}`));

test("the module is small", () => {
  assert.ok(bytes.length < 250_000, `${bytes.length} bytes`);
  assert.ok(gzipSync(bytes).length < 100_000, "compressed");
});

test("steps have the bits of a call, and a reset starts anew", () => {
  const x = wave(7 * D), { y, h, c } = plain.call(x), stream = plain.stream();
  for (let run = 0; run < 2; run++, stream.reset())
    for (let t = 0; t < 7; t++)
      assert.deepEqual(stream.step(x.subarray(t * D, (t + 1) * D)), y.slice(t * H, (t + 1) * H));
  assert.deepEqual([h, c, stream.steps], [y.slice(-H), null, 0]);
  assert.equal(stream.step(x.subarray(0, D)), stream.step(x.subarray(0, D))); // the same array each time
  stream.free();
});

test("initial states, lengths, resets and batches", () => {
  const x = wave(6 * D), { y, h } = plain.call(x), first = plain.call(x.slice(0, 2 * D));
  assert.deepEqual(plain.call(x.slice(2 * D), { h: first.h }), { y: y.slice(2 * H), h, c: null });
  assert.deepEqual(plain.call(x, { lengths: [2] }).y, Float32Array.from(y, (v, i) => (i < 2 * H ? v : 0)));
  const cut = plain.call(x, { resets: [0, 0, true, 0, 0, 0] });
  assert.deepEqual(cut.y.slice(2 * H), plain.call(x.slice(2 * D)).y);
  const both = plain.call(Float32Array.of(...x, ...wave(6 * D, 9)), { sequences: 2, batchFirst: true });
  assert.deepEqual(both.y.slice(0, 6 * H), y);
});

test("a damaged file is refused by name, and nothing is lost", () => {
  const whole = file("layer"), before = lnrnn.memory.buffer.byteLength;
  for (let round = 0; round < 200; round++) {
    for (const end of [0, 7, 100, whole.length - 1])
      refuses(() => lnrnn.load(whole.subarray(0, end)), Status.INVALID, /not a complete safetensors file/);
    refuses(() => lnrnn.load(edited(whole, '\\"RNN\\"', '\\"Elman\\"')), Status.INVALID, /^cell must be one of/);
    refuses(() => lnrnn.load(edited(whole, /(hidden_size\\":\s*)3/, "$117")), Status.INVALID, /must be float32/);
  }
  refuses(() => lnrnn.load("model"), Status.INVALID, /bytes must be an ArrayBuffer/);
  assert.ok(lnrnn.memory.buffer.byteLength - before < 1 << 20, "failed loads leak");
  assert.equal(lnrnn.load(whole).inputs, 2);
});

test("no random damage crashes the module", () => {
  const whole = file("batch");
  let seed = 1;
  const draw = n => (seed = (seed * 1664525 + 1013904223) >>> 0) % n;
  for (let round = 0; round < 3000; round++) {
    const bad = Uint8Array.from(whole);
    for (let k = draw(4); k >= 0; k--) bad[draw(round % 2 ? 8 + 1200 : bad.length)] = draw(256);
    try {
      lnrnn.load(bad).free();
    } catch (error) {
      assert.ok(error instanceof LnrnnError && error.message.length > 9, String(error));
    }
  }
});

test("sizes that 32 bits cannot hold are refused", () => {
  for (const size of ["4294967298", "18446744073709551618", "2147483647", "16777217"]) {
    const whole = edited(file("none"), /(input_size\\":\s*)\d+/, (_, name) => name + size);
    refuses(() => lnrnn.load(whole), Status.INVALID, /input_size must be|weight matrix has at most 2\*\*24|must be float32/);
  }
});

test("arguments of another length or kind are named", () => {
  const stream = plain.stream({ lanes: 2 }), x = wave(D);
  for (const frame of [undefined, [], wave(2 * D + 1), wave(D)])
    refuses(() => stream.step(frame), Status.INVALID, new RegExp(`frame must have ${2 * D} values`));
  refuses(() => stream.step(wave(2 * D), new Float32Array(H)), Status.INVALID, /out must have/);
  assert.equal(stream.steps, 0);
  refuses(() => plain.call(wave(D + 1)), Status.INVALID, /x must have a multiple of/);
  refuses(() => plain.call(x, { sequences: 0 }), Status.INVALID, /sequences must be an integer/);
  refuses(() => plain.call(x, { h: wave(H + 1) }), Status.INVALID, /h must have/);
  refuses(() => plain.call(x, { c: wave(H) }), Status.INVALID, /c must have 0 values/);
  refuses(() => plain.call(x, { lengths: [1, 1] }), Status.INVALID, /lengths must have 1 values/);
  refuses(() => plain.call(x, { lengths: [0.5] }), Status.INVALID, /lengths must be integers/);
  refuses(() => plain.call(x, { lengths: [2] }), Status.INVALID, /lengths\[0\] must be between 0 and the 1 steps/);
  refuses(() => plain.call(x, { resets: [] }), Status.INVALID, /resets must have/);
  refuses(() => plain.stream({ lanes: 0 }), Status.INVALID, /lanes must be/);
  refuses(() => lnrnn.load(file("layer")).stream(), Status.INVALID, /network must have one direction/);
  refuses(() => lnrnn.layerNorm(x, 0), Status.INVALID, /x must have rows/);
  stream.free();
  refuses(() => stream.step(x), Status.INVALID, /the stream is freed/);
});

test("a NaN stays in its lane, until a reset", () => {
  const stream = plain.stream({ lanes: 2 }), frame = wave(2 * D), good = plain.call(frame.slice(D));
  frame[0] = NaN;
  const y = stream.step(frame);
  assert.ok(y.subarray(0, H).every(Number.isNaN));
  assert.deepEqual(y.slice(H), good.y);
  stream.reset();
  assert.ok(stream.step(wave(2 * D)).every(Number.isFinite));
});

test("batch norm ends with its statistics, and the stream stays usable", () => {
  const network = lnrnn.load(edited(file("batch"), /(overrun\\":\s*\\")\w+/, "$1raise")), stream = network.stream(), x = wave(network.inputs);
  let known = 0;
  try {
    for (; known < 1000; known++) stream.step(x);
  } catch (error) {
    assert.deepEqual([error.name, error.status, stream.steps], ["LnrnnError", Status.STREAM_OVERRUN, known]);
    assert.match(error.message, new RegExp(`^lane 0 has ${known + 1} steps, but statistics are known for ${known} only`));
  }
  assert.ok(known > 0 && known < 1000);
  refuses(() => network.call(wave((known + 1) * network.inputs)), Status.TOO_LONG, /statistics are known for/);
  stream.reset();
  assert.deepEqual(stream.step(x), network.call(x).y);
});

test("a response without the file is an error", async () => {
  const absent = new Response("<html>", { status: 404, statusText: "Not Found" });
  await assert.rejects(open(absent), { name: "LnrnnError", status: Status.INVALID, message: / has the status 404 Not Found$/ });
  assert.equal((await open(new Response(bytes))).load(file("none")).inputs, D);
});

test("memory that cannot grow is an error, and other objects stay", () => {
  const own = new Lnrnn(module), network = own.load(file("none")), stream = network.stream(), x = wave(D);
  const want = network.call(x).y, most = 32768; // pages: 2 GiB
  own.memory.grow(most - own.memory.buffer.byteLength / 65536 - 1);
  const big = new Float32Array(D * (1 << 16)); // larger than the page that is left
  refuses(() => network.call(big), Status.NO_MEMORY, /^no memory/);
  refuses(() => network.stream({ lanes: 100000 }), Status.NO_MEMORY, /^no memory for a stream/);
  for (const made of [() => own.load(file("layer")), () => network.stream()]) { // requests fail one after the other
    const all = [], fill = () => { while (all.length < 1000) all.push(made()); };
    refuses(fill, Status.NO_MEMORY, /^no memory/);
    const count = all.length;
    all.splice(0).forEach(one => one.free());
    refuses(fill, Status.NO_MEMORY, /^no memory/);
    assert.equal(all.length, count); // the failure lost no memory
    all.forEach(one => one.free());
  }
  assert.deepEqual(stream.step(x), want); // its views were detached
  assert.deepEqual(network.call(x).y, want);
});

test("two pages in one worker share nothing", () => {
  const other = new Lnrnn(module), theirs = other.load(file("none")).stream(), ours = plain.stream(), x = wave(D);
  assert.notEqual(other.memory.buffer, lnrnn.memory.buffer);
  theirs.step(new Float32Array(D).fill(NaN));
  other.memory.grow(100);
  refuses(() => other.load(file("layer").subarray(1)), Status.INVALID, /not a complete safetensors file/);
  assert.deepEqual(ours.step(x), plain.call(x).y);
  ours.free();
  theirs.reset();
  assert.deepEqual(theirs.step(x), plain.call(x).y);
});

test("a network may be freed before its streams", () => {
  const network = lnrnn.load(file("none")), stream = network.stream(), x = wave(D), want = plain.call(x).y;
  network.free();
  network.free();
  refuses(() => network.call(x), Status.INVALID, /the network is freed/);
  assert.deepEqual(stream.step(x), want);
});

test("a step allocates nothing", () => {
  const stream = plain.stream(), x = wave(D), pages = lnrnn.memory.buffer.byteLength;
  for (let k = 0; k < 1000; k++) stream.step(x);
  const before = process.memoryUsage().heapUsed;
  for (let k = 0; k < 100000; k++) stream.step(x);
  assert.ok(process.memoryUsage().heapUsed - before < 1 << 20);
  assert.equal(lnrnn.memory.buffer.byteLength, pages);
});

test("the audio processor steps without memory, and tells times and errors", async () => {
  let Processor, told = [], calls = 0;
  const port = { postMessage: message => told.push(message) };
  Object.assign(globalThis, { sampleRate: 500 * H, registerProcessor: (_, made) => { Processor = made; } });
  globalThis.AudioWorkletProcessor = class { port = port; };
  await import("./audio.js");
  const made = file => new Processor({ processorOptions: { module, file } });
  const one = made(file("none")), x = wave(D), y = new Float32Array(H), [heard, drawn] = [[[x]], [[y]]];
  for (const inputs of [heard, [[]]]) assert.ok(one.process(inputs, drawn)); // no microphone is silence
  assert.deepEqual(y, plain.call(Float32Array.of(...x, ...new Float32Array(D))).y.slice(H));
  for (let k = 0; k < 2000; k++) one.process(heard, drawn);
  told = [];
  const before = process.memoryUsage().heapUsed;
  for (; calls < 100000; calls++) one.process(heard, drawn);
  assert.ok(process.memoryUsage().heapUsed - before < 1 << 20);
  assert.equal(told.length, 200);
  assert.ok(told.every(({ step, budget }) => budget === 2 && step > 0));
  const batch = edited(file("batch"), /(overrun\\":\s*\\")\w+/, "$1raise"), outputs = lnrnn.load(batch).widths[0];
  for (const [bytes, text] of [
    [file("none").subarray(1), /^LnrnnError: .*not a complete safetensors file/], [batch, /^LnrnnError: lane 0 has \d+ steps/],
    [file("layer"), /^LnrnnError: .*one direction/],
  ]) {
    told = [];
    const bad = made(bytes);
    for (let k = 0; k < 500 && bad.process([[]], [[new Float32Array(outputs)]]); k++);
    assert.match(told.at(-1).error, text);
    if (bad.stream) assert.ok(!bad.process([[]], [[new Float32Array(outputs)]]));
  }
  told = [];
  assert.ok(!one.process([[wave(D + 1)]], drawn));
  assert.match(told[0].error, /^LnrnnError: frame must have/);
});

test("layer and RMS norm", () => {
  const x = wave(12), mean = rows => rows.reduce((a, b) => a + b) / rows.length;
  const gain = wave(4, 3), bias = wave(4, 2);
  for (const rms of [false, true]) {
    const y = lnrnn.layerNorm(x, 4, { gain, rms, ...(rms ? {} : { bias }) });
    for (let r = 0; r < 12; r += 4) {
      const row = [...x.subarray(r, r + 4)], m = rms ? 0 : mean(row), v = mean(row.map(one => (one - m) ** 2));
      row.forEach((one, k) => {
        const want = ((one - m) / Math.sqrt(v + 1e-5)) * gain[k] + (rms ? 0 : bias[k]);
        assert.ok(Math.abs(y[r + k] - want) < 2e-6);
      });
    }
  }
  refuses(() => lnrnn.layerNorm(x, 4, { gain, bias, rms: true }), Status.INVALID, /bias must be null/);
});
