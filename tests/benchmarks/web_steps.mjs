// Races a step of lnrnn.wasm against onnxruntime-web's, in turns, one thread each. After `make wasm`, in any folder:
//   npm install onnxruntime-web
//   python -c "import lnrnn as l; [(r := c(n, n, norm=None)).save(c.__name__) or l.to_onnx(r, c.__name__ + '.onnx')
//              for c, n in ((l.LSTM, 128), (l.GRU, 64))]"
//   node /path/to/tests/benchmarks/web_steps.mjs
// A page in a browser can import race() and give it the libraries and fetch.
const ROUNDS = 600;
const least = (times) => Math.min(...times);
const median = (times) => [...times].sort((a, b) => a - b)[times.length >> 1];

// Returns a line of text for each network. read(name): the bytes of a file, or a promise of them.
export async function race(ort, lnrnn, read) {
  const lines = [];
  for (const [cell, size, states] of [["LSTM", 128, ["h", "c"]], ["GRU", 64, ["h"]]]) {
    const random = (t) => Float32Array.from({ length: size }, (_, i) => Math.sin(t * size + i * i));
    const frames = Array.from({ length: 8 }, (_, t) => random(t));
    const stream = lnrnn.load(await read(cell)).stream();
    const session = await ort.InferenceSession.create(new Uint8Array(await read(`${cell}.onnx`)),
      { executionProviders: ["wasm"], graphOptimizationLevel: "all" });
    const inputs = frames.map((x) => new ort.Tensor("float32", x, [1, 1, size]));
    const feed = {};
    for (const name of states) feed[`${name}0`] = new ort.Tensor("float32", new Float32Array(size), [1, 1, size]);
    const theirs = async (t) => {
      const out = await session.run({ x: inputs[t & 7], ...feed }, states);
      for (const name of states) feed[`${name}0`] = out[name];
      return out.h.data;
    };
    let difference = 0;
    for (let t = 0; t < 64; t++) {
      const y = stream.step(frames[t & 7]), other = await theirs(t);
      other.forEach((value, i) => { difference = Math.max(difference, Math.abs(value - y[i])); });
    }
    if (!(difference < 1e-5)) throw new Error(`${cell}: the outputs differ by ${difference}`);
    const own = [], other = [];
    for (let round = -50; round < ROUNDS; round++) { // the engines compile again in the first rounds
      let start = performance.now();
      for (let t = 0; t < 64; t++) stream.step(frames[t & 7]);
      if (round >= 0) own.push(1000 / 64 * (performance.now() - start));
      start = performance.now();
      for (let t = 0; t < 16; t++) await theirs(t);
      if (round >= 0) other.push(1000 / 16 * (performance.now() - start));
    }
    lines.push(`${cell} ${size}: lnrnn ${least(own).toFixed(2)} us, onnxruntime-web ${least(other).toFixed(2)} us, `
      + `${(least(other) / least(own)).toFixed(2)}x by the least, ${(median(other) / median(own)).toFixed(2)}x by medians`);
  }
  return lines;
}

if (globalThis.process?.argv[1]?.endsWith("web_steps.mjs")) {
  const { readFile } = await import("node:fs/promises"), { pathToFileURL } = await import("node:url");
  const { createRequire } = await import("node:module");
  const ort = createRequire(`${process.cwd()}/here.js`)("onnxruntime-web");
  const built = new URL("../../build/web/", import.meta.url);
  const { open } = await import(new URL("lnrnn.js", built));
  ort.env.wasm.numThreads = 1;
  const lnrnn = await open(await readFile(new URL("lnrnn.wasm", built)));
  const read = (name) => readFile(new URL(name, pathToFileURL(`${process.cwd()}/`)));
  console.log([process.version, ...await race(ort, lnrnn, read)].join("\n"));
}
