/* The demo of the front page: three networks read joined utterances step by step, and a picture draws their answers.
 *
 * It takes the place of the picture cliff.png, which stays if a file is missing or scripts are off. conf.py wrote
 * demo.json: `networks` as files of lnrnn.save with the weights of a linear layer, and utterances `x`. */

import { open } from "./lnrnn.js";

const NAMES = { layer: "layer norm", none: "no norm", batch: "batch norm" };
const PAUSE = 80; // milliseconds between steps
const STYLE = `
  .demo { margin: 1.5em 0; }
  .demo figure { margin: 0 0 0 2.6em; position: relative; }
  .demo figure span { color: var(--color-foreground-secondary); font-size: 0.8em; position: absolute; }
  .demo svg { background: var(--color-background-secondary); display: block; height: 16em; width: 100%; }
  .demo :is(line, polyline) { fill: none; stroke: currentColor; stroke-width: 2; vector-effect: non-scaling-stroke; }
  .demo .layer { color: #1f8fd6; } .demo .batch { color: #d55e00; } .demo .none { color: #808080; }
  .demo :is(polyline, svg line).batch { stroke-width: 4; } .demo .none { stroke-dasharray: 6 3; }
  .demo .values svg { background: none; display: inline; height: 0.8em; margin-right: 0.4em; width: 2em; }
  .demo .values > span { display: inline-block; margin-right: 1.2em; }
  .demo .values { font-variant-numeric: tabular-nums; margin: 1.8em 0 0.6em; }
  .demo :is(button, select) { font: inherit; margin: 0.2em 0.4em 0.2em 0; max-width: 100%; min-height: 2em; }
  .demo [role=status] { min-height: 3.2em; overflow-wrap: anywhere; }
  .demo small { display: block; }`;

const floats = text => new Float32Array(bytes(text).buffer);
const percent = value => (value === undefined ? "stopped" : `${Math.round(100 * value)} %`);

function bytes(text) {
  return Uint8Array.from(atob(text), one => one.charCodeAt(0));
}

/* Returns a network's file with another rule for steps without statistics. Spaces keep its length. */
function withOverrun(file, overrun) {
  const text = String.fromCharCode(...file.subarray(0, 2000)), found = text.match(/(overrun\\": \\")raise\\"/);
  const at = found.index + found[1].length, changed = file.slice();
  [...`${overrun}\\"`.padEnd(7)].forEach((one, k) => { changed[at + k] = one.charCodeAt(0); });
  return changed;
}

/* Returns for each step the inputs of all lanes. A lane reads an utterance, and then the next ones of its speaker. */
function join({ steps, scale, lengths, labels, x }) {
  const values = new Int8Array(bytes(x).buffer), width = values.length / lengths.reduce((a, b) => a + b);
  const starts = lengths.map((_, n) => lengths.slice(0, n).reduce((a, b) => a + b, 0));
  const lanes = labels.map((label, lane) => {
    const same = [...labels.keys()].filter(n => labels[n] === label), rows = [];
    for (let k = same.indexOf(lane); rows.length < steps; k++) {
      const n = same[k % same.length];
      for (let t = 0; t < lengths[n]; t++) rows.push((starts[n] + t) * width);
    }
    return rows;
  });
  return Array.from({ length: steps }, (_, t) => Float32Array.from(
    { length: lanes.length * width }, (_, k) => values[lanes[Math.floor(k / width)][t] + k % width] / scale));
}

/* The stream of one network, and the linear layer that names speakers. */
class Listener {
  constructor(lnrnn, file, head, labels) {
    const network = lnrnn.load(file);
    this.stream = network.stream({ lanes: labels.length });
    this.size = network.widths[0];
    this.head = floats(head);
    this.labels = labels;
    network.free();
  }

  /* Reads a step of all lanes. Returns the mean probability that the network gives the right speaker. */
  step(frame) {
    const h = this.stream.step(frame), { head, size, labels } = this, speakers = head.length / (size + 1);
    const logit = (lane, speaker) => {
      let sum = head[speakers * size + speaker];
      for (let k = 0; k < size; k++) sum += head[speaker * size + k] * h[lane * size + k];
      return sum;
    };
    const right = labels.map((label, lane) => {
      const own = logit(lane, label);
      return 1 / labels.speakers.reduce((sum, speaker) => sum + Math.exp(logit(lane, speaker) - own), 0);
    });
    return right.reduce((a, b) => a + b) / right.length;
  }
}

const line = name => `<svg viewBox="0 0 20 8" aria-hidden="true"><line class="${name}" x2="20" y1="4" y2="4" /></svg>`;

function page({ known, steps, lengths, source }) {
  const past = `left: ${100 * (known - 1) / (steps - 1)}%`;
  return `<style>${STYLE}</style>
    <p>Three RNNs run in your browser. They read ${lengths.length} sequences of joined test utterances, each of one
    speaker. No training utterance had more than ${known} steps.</p>
    <figure><span style="right: 100%; top: 0; padding-right: 0.4em">100&nbsp;%</span>
      <span style="right: 100%; bottom: 0; padding-right: 0.4em">0</span>
      <span style="${past}; padding-left: 0.4em">longer than any in training</span>
      <svg viewBox="1 0 ${steps - 1} 1" preserveAspectRatio="none" role="img"
        aria-label="Mean probability of the right speaker at each step"><g transform="matrix(1 0 0 -1 0 1)">
        <rect x="${known}" width="${steps - known}" height="1" fill="currentColor" opacity="0.07" />
        ${Object.keys(NAMES).map(name => `<polyline class="${name}" />`).join("")}</g></svg>
      <span style="left: 0; top: 100%">1</span><span style="${past}; top: 100%">${known}</span>
      <span style="right: 0; top: 100%">step ${steps}</span></figure>
    <p class="values"><span>Step <b class="at"></b>, mean probability of the right speaker:</span>
      ${Object.entries(NAMES).map(([name, words]) =>
    `<span>${line(name)}${words} <b data-value="${name}"></b></span>`).join(" ")}</p>
    <button type="button" data-do="run"></button><button type="button" data-do="step">Step</button>
    <button type="button" data-do="restart">Restart</button>
    <label>Past step ${known}, batch norm <select><option value="last">repeats its last statistics</option>
      <option value="mean">averages its statistics</option><option value="raise">raises an error</option>
    </select></label>
    <p role="status" aria-live="polite"></p><small>${source}</small>`;
}

async function start(picture) {
  const at = name => new URL(name, import.meta.url), json = await (await fetch(at("demo.json"))).json();
  const lnrnn = await open(fetch(at("lnrnn.wasm"))), frames = join(json), { known, steps, labels, networks } = json;
  labels.speakers = [...new Set(labels)];
  const demo = document.createElement("section"), one = selector => demo.querySelector(selector);
  demo.className = "demo";
  demo.setAttribute("aria-label", "Demo: batch norm past its training length");
  demo.innerHTML = page(json);
  let step, values, listeners = {}, timer = null;

  const say = text => { one("[role=status]").textContent = text; };
  const summary = () => Object.entries(NAMES).map(([name, words]) => `${words} ${percent(values[name])}`).join(", ");

  function restart() {
    for (const { stream } of Object.values(listeners)) stream.free();
    listeners = Object.fromEntries(Object.keys(NAMES).map(name => {
      const { file, head } = networks[name], read = bytes(file);
      return [name, new Listener(lnrnn, name === "batch" ? withOverrun(read, one("select").value) : read, head, labels)];
    }));
    [step, values] = [0, {}];
    for (const curve of demo.querySelectorAll("polyline")) curve.setAttribute("points", "");
    say("");
    show();
  }

  function show() {
    one(".at").textContent = step;
    for (const name of Object.keys(NAMES)) one(`[data-value=${name}]`).textContent = step ? percent(values[name]) : "";
    one("[data-do=run]").textContent = timer ? "Pause" : "Run";
    one("[data-do=step]").disabled = step === steps;
  }

  /* Takes a step of each network. A refused step ends its curve, and the page shows the error. */
  function advance() {
    const frame = frames[step++];
    for (const [name, listener] of Object.entries(listeners)) {
      try {
        values[name] = listener.step(frame);
        const curve = one(`polyline.${name}`);
        curve.setAttribute("points", `${curve.getAttribute("points")} ${step},${values[name]}`);
      } catch (error) {
        listener.stream.free();
        delete listeners[name];
        delete values[name];
        say(`Step ${step}, ${NAMES[name]}: ${error.name}: ${error.message}`);
      }
    }
    if (step === known) say(`Step ${step}: batch norm has no statistics for the next steps.`);
    if (step === steps) {
      run(false);
      if (listeners.batch) say(`Step ${step}: ${summary()}.`);
    }
    show();
  }

  function run(on) {
    clearInterval(timer);
    timer = on ? setInterval(advance, PAUSE) : null;
    if (on && step === steps) restart();
    show();
  }

  const actions = { run: () => run(!timer), restart, step: () => { run(false); advance(); } };
  for (const button of demo.querySelectorAll("button")) button.onclick = actions[button.dataset.do];
  one("select").onchange = restart;
  restart();
  picture.closest("p").replaceWith(demo);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  new IntersectionObserver((seen, observer) => {
    if (!seen.some(one => one.isIntersecting)) return;
    observer.disconnect();
    if (!step) run(true);
  }, { threshold: 0.5 }).observe(demo);
}

start(document.querySelector('img[src$="cliff.png"]'));
