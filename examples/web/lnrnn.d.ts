/** Codes of errors, as in lnrnn.h. Errors about arguments have INVALID. */
export declare const Status: Readonly<{
  NO_MEMORY: 1;
  INVALID: 4;
  OTHER_VERSION: 5;
  TOO_LONG: 6;
  STREAM_OVERRUN: -3;
}>;

/** An error with the library's message. After it, networks and streams are as before the call. */
export declare class LnrnnError extends Error {
  readonly status: number;
}

type Numbers = ArrayLike<number> & Iterable<number>;
type Source = BufferSource | Response | WebAssembly.Module;

/** Compiles lnrnn.wasm, from its bytes or a Response of fetch, and creates an instance. */
export declare function open(source: Source | Promise<Source>): Promise<Lnrnn>;

/** An instance of lnrnn.wasm. Instances share nothing. */
export declare class Lnrnn {
  /** Creates an instance at once, as a worklet needs it. */
  constructor(module: WebAssembly.Module);
  readonly memory: WebAssembly.Memory;
  /** Opens a network from the bytes of a file that lnrnn.save wrote in Python. */
  load(bytes: BufferSource): Network;
  /** Normalises rows of `size` values. With rms: RMS norm, which has no bias. */
  layerNorm(
    x: Numbers, size: number, options?: { gain?: Numbers; bias?: Numbers; eps?: number; rms?: boolean },
  ): Float32Array;
}

export interface CallOptions {
  /** The number of sequences B; default 1. */
  sequences?: number;
  /** The axes of x, y and resets are (B, T, ..) in place of (T, B, ..). */
  batchFirst?: boolean;
  /** Initial states (lines, B, widths[0]) and (lines, B, widths[1]); default 0. */
  h?: Numbers | null;
  c?: Numbers | null;
  /** The number of steps of each sequence; default: all. */
  lengths?: Numbers | null;
  /** Whether states are set to 0 before a step, (T, B). */
  resets?: ArrayLike<boolean | number> | null;
}

/** A network, which does not change. */
export interface Network {
  readonly inputs: number;
  readonly directions: number;
  /** Layers times directions. */
  readonly lines: number;
  /** The numbers of values of h, and of c, or 0 without c. */
  readonly widths: readonly [number, number];
  /** Runs sequences x (T, B, inputs). Returns y (T, B, directions * widths[0]), and the last states. */
  call(x: Numbers, options?: CallOptions): { y: Float32Array; h: Float32Array; c: Float32Array | null };
  /** A stream of some lanes, each with the states of one sequence. All begin at 0. */
  stream(options?: { lanes?: number }): Stream;
  /** Frees the network. Its streams remain usable. */
  free(): void;
}

export interface Stream {
  readonly lanes: number;
  /** The number of steps since the last reset. */
  readonly steps: number;
  /** Computes one step of all lanes, frame (lanes, inputs). Returns `out`, by default an array that the next step
   * overwrites. It does not allocate. */
  step(frame: ArrayLike<number>, out?: Float32Array): Float32Array;
  /** Sets all states and `steps` to 0. */
  reset(): void;
  free(): void;
}
