/* An AudioWorklet whose network reads and writes the samples of a call in one step, for audio.html. */

import { Lnrnn } from "../../build/web/lnrnn.js";

/* Returns the milliseconds of a step, the median of 5 rounds. Worklets have only Date's clock, so a single step
 * cannot be timed. */
function timed(stream, frame) {
  const times = new Float64Array(5).map(() => {
    const begin = Date.now();
    for (let steps = 1; ; steps++) {
      stream.reset();
      stream.step(frame);
      const time = Date.now() - begin;
      if (time >= 20) return time / steps;
    }
  });
  stream.reset();
  return times.sort()[2];
}

class LnrnnProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions: { module, file } }) {
    super();
    this.calls = 0;
    try {
      const network = new Lnrnn(module).load(file);
      this.stream = network.stream();
      this.silence = new Float32Array(network.inputs);
      this.milliseconds = timed(this.stream, this.silence);
    } catch (error) {
      this.fail(error);
    }
  }

  /* Allocates nothing but a message each second. */
  process(inputs, outputs) {
    if (!this.stream) return false;
    const output = outputs[0][0];
    try {
      this.stream.step(inputs[0][0] ?? this.silence, output);
    } catch (error) {
      return this.fail(error);
    }
    if (++this.calls % Math.ceil(sampleRate / output.length) === 0) {
      const budget = 1000 * output.length / sampleRate;
      this.port.postMessage({ calls: this.calls, step: this.milliseconds, budget });
    }
    return true;
  }

  /* Sends an error to the page, and ends the node: false is for `process` to return. */
  fail({ name, message }) {
    this.port.postMessage({ error: `${name}: ${message}` });
    return false;
  }
}

registerProcessor("lnrnn", LnrnnProcessor);
