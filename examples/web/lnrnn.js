/* lnrnn in JavaScript: networks and streams of lnrnn.wasm on typed arrays. lnrnn.d.ts describes every function.
 *
 * An Lnrnn is an instance of the module with a memory of its own, which its networks and streams share. They stay
 * until `free`. The module has 32-bit pointers and no threads; the names `c.lnrnn_..` are functions of lnrnn.h. */

export const Status = Object.freeze({
  NO_MEMORY: 1, INVALID: 4, OTHER_VERSION: 5, TOO_LONG: 6, STREAM_OVERRUN: -3,
});

export class LnrnnError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "LnrnnError";
    this.status = status;
  }
}

function check(right, message) {
  if (!right) throw new LnrnnError(Status.INVALID, message);
}

const isCount = value => Number.isInteger(value) && value >= 1 && value < 2 ** 31;

const checkLength = (name, array, length) =>
  check(array?.length === length, `${name} must have ${length} values, got ${array?.length ?? array}`);

/* Compiles the module and creates an instance. source: its bytes, a Response of fetch, or a WebAssembly.Module. */
export async function open(source) {
  source = await source;
  check(source.ok ?? true, `${source.url} has the status ${source.status} ${source.statusText}`);
  if (source instanceof WebAssembly.Module) return new Lnrnn(source);
  return new Lnrnn(await WebAssembly.compile(source.arrayBuffer ? await source.arrayBuffer() : source));
}

/* Blocks in the memory of the module, freed together. */
class Blocks {
  #c; #all = [];

  constructor(c) {
    this.#c = c;
  }

  take(bytes) {
    const c = this.#c, at = c.malloc(Math.max(bytes, 1));
    if (!at) throw new LnrnnError(Status.NO_MEMORY, `no memory for ${bytes} bytes`);
    this.#all.push(at);
    return at;
  }

  /* Returns the address of a copy of a typed array, or 0 for null. */
  put(array) {
    if (array == null) return 0;
    const at = this.take(array.byteLength);
    new Uint8Array(this.#c.memory.buffer, at).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    return at;
  }

  floats(at, length) {
    return new Float32Array(this.#c.memory.buffer, at, length);
  }

  free() {
    const c = this.#c;
    for (const at of this.#all.splice(0)) c.free(at);
  }
}

/* Calls body(blocks), and frees the blocks. */
function withBlocks(c, body) {
  const blocks = new Blocks(c);
  try {
    return body(blocks);
  } finally {
    blocks.free();
  }
}

/* Calls body(address, message), where a function of C stores a pointer, or a message of LNRNN_MESSAGE = 256 bytes.
 * Returns the pointer. */
function checked(c, body) {
  return withBlocks(c, blocks => {
    const at = blocks.take(8 + 256), status = body(at, at + 8), bytes = new Uint8Array(c.memory.buffer, at + 8);
    if (status) throw new LnrnnError(status, String.fromCharCode(...bytes.subarray(0, bytes.indexOf(0))));
    return new Uint32Array(c.memory.buffer, at, 1)[0];
  });
}

export class Lnrnn {
  #c; memory;

  /* module: a WebAssembly.Module. Creates the instance at once, as a worklet needs it. */
  constructor(module) {
    const none = (...at) => (at.forEach(one => new Uint32Array(this.memory.buffer, one, 1).fill(0)), 0);
    const exit = code => { throw new LnrnnError(Status.NO_MEMORY, `lnrnn.wasm ended with ${code}`); };
    const wasi = { environ_get: () => 0, environ_sizes_get: none, proc_exit: exit };
    const c = this.#c = new WebAssembly.Instance(module, { wasi_snapshot_preview1: wasi }).exports;
    this.memory = c.memory;
    c._initialize();
  }

  load(bytes) {
    const c = this.#c, view = ArrayBuffer.isView(bytes) ? bytes : bytes instanceof ArrayBuffer && new Uint8Array(bytes);
    check(view, `bytes must be an ArrayBuffer or a typed array, got ${typeof bytes}`);
    return withBlocks(c, blocks => {
      const file = blocks.put(view), size = view.byteLength;
      return new Network(c, checked(c, (at, message) => c.lnrnn_network_read(file, size, at, message)));
    });
  }

  layerNorm(x, size, { gain = null, bias = null, eps = 1e-5, rms = false } = {}) {
    const c = this.#c, rows = x.length / size;
    check(isCount(size) && Number.isInteger(rows), `x must have rows of ${size} values, got ${x.length}`);
    check(!rms || bias == null, "bias must be null with rms, which has none");
    for (const [name, array] of Object.entries({ gain, bias })) if (array != null) checkLength(name, array, size);
    return withBlocks(c, blocks => {
      const [at, g, b] = [x, gain, bias].map(array => blocks.put(array && Float32Array.from(array)));
      c.lnrnn_layer_norm(0, rows, size, at, size, g, b, eps, at, size, rms ? 0 : 1, 1);
      return blocks.floats(at, x.length).slice();
    });
  }
}

class Network {
  #c; #at;

  constructor(c, at) {
    this.#c = c;
    this.#at = at;
    this.inputs = c.lnrnn_network_inputs(at);
    this.directions = c.lnrnn_network_directions(at);
    this.lines = c.lnrnn_network_layers(at) * this.directions;
    this.widths = [c.lnrnn_network_state_size(at, 0), c.lnrnn_network_state_size(at, 1)];
  }

  #address() {
    check(this.#at, "the network is freed");
    return this.#at;
  }

  call(x, { sequences = 1, batchFirst = false, h = null, c: cells = null, lengths = null, resets = null } = {}) {
    const c = this.#c, network = this.#address(), steps = x?.length / sequences / this.inputs;
    check(isCount(sequences), `sequences must be an integer of at least 1, got ${sequences}`);
    const step = sequences * this.inputs;
    check(Number.isInteger(steps), `x must have a multiple of ${step} values, got ${x?.length ?? x}`);
    if (lengths) checkLength("lengths", lengths, sequences);
    for (const one of lengths ?? []) check(Number.isInteger(one), `lengths must be integers, got ${one}`);
    if (resets) checkLength("resets", resets, steps * sequences);
    const outputs = steps * sequences * this.directions * this.widths[0];
    const sizes = this.widths.map(width => this.lines * sequences * width);
    [h, cells].forEach((state, k) => state && checkLength("hc"[k], state, sizes[k]));
    return withBlocks(c, blocks => {
      const states = [h, cells].map((state, k) =>
        sizes[k] && blocks.put(state ? Float32Array.from(state) : new Float32Array(sizes[k])));
      const at = blocks.put(Float32Array.from(x)), y = blocks.take(4 * outputs);
      const ends = lengths && blocks.put(BigInt64Array.from(lengths, BigInt));
      const cut = resets && blocks.put(Uint8Array.from(resets, one => (one ? 1 : 0)));
      const words = [steps, sequences, batchFirst ? 1 : 0, 1, at, ends, cut, ...states, y, ...states]; // lnrnn_sequences
      const call = blocks.put(Uint32Array.from(words));
      checked(c, (_, message) => c.lnrnn_network_run(network, call, 0, message));
      const [hn, cn] = states.map((state, k) => (state ? blocks.floats(state, sizes[k]).slice() : null));
      return { y: blocks.floats(y, outputs).slice(), h: hn, c: cn };
    });
  }

  stream({ lanes = 1 } = {}) {
    check(isCount(lanes), `lanes must be an integer of at least 1, got ${lanes}`);
    return new Stream(this.#c, this.#address(), lanes, lanes * this.inputs, lanes * this.widths[0]);
  }

  free() {
    const c = this.#c;
    c.lnrnn_network_release(this.#at);
    this.#at = 0;
  }
}

class Stream {
  #c; #stream = 0; #handle = 0; #blocks; #at; #x; #y; #out;

  constructor(c, network, lanes, inputs, outputs) {
    this.#c = c;
    this.#blocks = new Blocks(c);
    this.lanes = lanes;
    try {
      this.#stream = checked(c, (at, message) => c.lnrnn_stream_create(network, lanes, at, message));
      this.#handle = checked(c, (at, message) => c.lnrnn_handle_create(this.#stream, lanes, 1, at, message));
      this.#at = [inputs, outputs].map(size => [this.#blocks.take(4 * size), size]);
      this.#out = new Float32Array(outputs);
      this.#point();
    } catch (error) {
      this.free();
      throw error;
    }
  }

  get steps() {
    const c = this.#c;
    check(this.#handle, "the stream is freed");
    return Number(new BigInt64Array(c.memory.buffer, c.lnrnn_stream_steps(this.#stream), 1)[0]);
  }

  step(frame, out = this.#out) {
    const c = this.#c;
    check(this.#handle, "the stream is freed");
    if (!this.#x.length) this.#point();
    if (frame?.length !== this.#x.length) checkLength("frame", frame, this.#x.length);
    if (out.length !== this.#y.length) checkLength("out", out, this.#y.length);
    this.#x.set(frame);
    const status = c.lnrnn_handle_step(this.#handle, 0, this.#x.byteOffset, this.#y.byteOffset);
    if (status) this.#refuse(status);
    out.set(this.#y);
    return out;
  }

  /* Views of the memory, again after it has grown, because then the old views are empty. */
  #point() {
    [this.#x, this.#y] = this.#at.map(([at, size]) => this.#blocks.floats(at, size));
  }

  #refuse(status) {
    const known = this.steps;
    throw new LnrnnError(status, `lane 0 has ${known + 1} steps, but statistics are known for ${known} only; ` +
      'reset the stream, or save a network with overrun "last", "mean" or "batch"');
  }

  reset() {
    const c = this.#c;
    check(this.#handle, "the stream is freed");
    c.lnrnn_handle_reset(this.#handle, 0, this.lanes);
  }

  free() {
    const c = this.#c;
    c.lnrnn_handle_free(this.#handle);
    c.lnrnn_stream_release(this.#stream);
    this.#handle = this.#stream = 0;
    this.#blocks.free();
  }
}
