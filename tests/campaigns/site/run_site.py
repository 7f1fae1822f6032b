"""Checks every page of `make docs` in Chromium at the width of a phone and of a desktop, light and dark.

pages: no page is wider than the window, nothing is cut off, no script fails, no picture is missing, and dark
pages are dark. Tables and code may scroll in a box. Every link within the site has a page and a section.
demo: the front page's demo is clicked through with each rule for batch norm. It must draw lnrnn's numbers.
audio: the AudioWorklet of examples/web must give lnrnn's bits for stored sound. Its page must hear a false
microphone, refuse a network of another size, and name an absent file.
control: pages with a planted fault of each kind must be reported.
"""

from __future__ import annotations

import argparse
import base64
import functools
import html
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import lnrnn
from helpers import using_isa
from lnrnn import demo as lnrnn_demo
from lnrnn.data import Utterances
from outcome import Missing, Wrong, done
from source_copy import ROOT

QUICK = ("index.html", "which_cell.html", "benchmarks.html", "studies/index.html", "api/networks.html")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIRTUAL = "--virtual-time-budget=100000000"  # timers that wait for nothing end at once
REAL = "--timeout=60000"
FALSE_SOUND = (
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip
DARK = {"light": "1", "dark": "0"}  # Blink's number of a color scheme
# A page that opens all pages in frames of both widths, and then has their faults.
HARNESS = """<!doctype html><pre id=faults></pre><script type=module>
const faults = [], ids = {}, links = [];
const look = (name, width, frame) => {
  const page = frame.contentDocument, wide = page.documentElement.clientWidth;
  const fault = text => faults.push(`${name} at ${width} pixels, THEME: ${text}`);
  const all = page.documentElement.scrollWidth;
  if (all > wide) fault(`the page is ${all} pixels wide, the window ${wide}`);
  const scrolls = one => ["auto", "scroll"].includes(frame.contentWindow.getComputedStyle(one).overflowX);
  const fits = one => one.getBoundingClientRect().right <= wide + 1, article = page.querySelector("article");
  for (const one of article.querySelectorAll("table, pre, img, svg, math, p, li, h1, h2, h3")) {
    let box = one;
    while (box !== article && !fits(one) && !(scrolls(box) && fits(box))) box = box.parentElement;
    if (box === article) fault(`cut off: ${one.tagName} ${one.textContent.trim().slice(0, 40)}`);
  }
  for (const one of page.images)
    if (one.complete && !one.naturalWidth) fault(`no picture: ${one.getAttribute("src")}`);
  const shade = frame.contentWindow.getComputedStyle(page.body).backgroundColor.match(/[\\d.]+/g);
  const dark = shade.slice(0, 3).reduce((a, b) => a + +b, 0) < 382;
  if (dark !== ("THEME" === "dark")) fault("it is not THEME");
  ids[new URL(frame.src).pathname] = new Set([...page.querySelectorAll("[id], [name]")].flatMap(
    one => [one.id, one.getAttribute("name")]));
  for (const one of page.querySelectorAll("a[href]"))
    if (one.origin === location.origin) links.push([name, one.getAttribute("href"), one.pathname, one.hash]);
};
for (const name of NAMES)
  for (const width of [390, 1280]) {
    const frame = document.createElement("iframe");
    Object.assign(frame, {src: `site/${name}`, width, height: 900});
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    look(name, width, frame);
    frame.remove();
  }
const there = {};
for (const [name, link, path, hash] of links) {
  there[path] ??= path in ids || (await fetch(path, {method: "HEAD"})).ok;
  if (!there[path] || (hash && path in ids && !ids[path].has(decodeURIComponent(hash.slice(1)))))
    faults.push(`${name}: a link to ${link}`);
}
document.querySelector("pre").textContent = JSON.stringify({faults, links: links.length});
</script>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A page with the image `held` counts as loaded after it has asked for `ended`."""

    ended = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/ended":
            self.ended.set()
        elif self.path == "/held":
            self.ended.wait(60)
        with suppress(ConnectionError):  # of a frame that has gone
            super().do_GET()

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def served(site: Path, folder: Path) -> Iterator[Callable[..., tuple[Any, str]]]:
    """Yields a function that opens a page with ``site`` in its folder, and returns #faults and the log."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise Missing("needs Chromium")
    root = folder / "served"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "site").symlink_to(site.resolve())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def opened(page: str, theme: str = "light", clock: str = VIRTUAL) -> tuple[Any, str]:
        (root / "all.html").write_text(page)
        _Quiet.ended.clear()
        words = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom",
            "--enable-logging=stderr", "--window-size=1400,1000", clock, *FALSE_SOUND,
            f"--blink-settings=preferredColorScheme={DARK[theme]}", f"--user-data-dir={folder / theme}",
        ]  # fmt: skip
        address = f"http://127.0.0.1:{server.server_port}/all.html"
        ran = subprocess.run([browser, *words, address], capture_output=True, text=True, timeout=1200)
        found = re.search("<pre id=.faults.>(.*?)</pre>", ran.stdout, re.DOTALL)
        if not found or not found[1]:
            raise Wrong(f"Chromium ended with {ran.returncode}: {ran.stdout[-500:]}{ran.stderr[-2000:]}")
        return json.loads(html.unescape(found[1])), ran.stderr

    try:
        yield opened
    finally:
        server.shutdown()


def looked_at(site: Path, folder: Path, quick: bool) -> tuple[int, int, list[str]]:
    """Returns the numbers of pages and links, and faults."""
    names = sorted(
        str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts
    )
    names = [name for name in names if not quick or name in QUICK]
    links, faults = 0, list[str]()
    with served(site, folder) as opened:
        for theme in DARK:
            page = HARNESS.replace("THEME", theme).replace("NAMES", json.dumps(names))
            seen, log = opened(page, theme)
            links, faults = seen["links"], [*faults, *seen["faults"]]
            said = re.findall(r'CONSOLE.*?\] "(.*?)", source: \S*?/site/(\S*) ', log)
            faults += [f"{name}: a script says {text}" for text, name in said]
    return len(names), links, list(dict.fromkeys(faults))


def built(options: argparse.Namespace) -> Path:
    site: Path = options.site or options.folder.parent / "html"
    if not options.site:
        if importlib.util.find_spec("sphinx_gallery") is None:
            raise Missing("needs Sphinx: make .venv/.docs")
        done([sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(site)])
    return site


def pages(options: argparse.Namespace) -> dict[str, int]:
    seen, links, faults = looked_at(built(options), options.folder, options.quick)
    print(*faults, sep="\n")
    if faults:
        raise Wrong(f"{len(faults)} faults: {faults[0]}")
    return {"pages": seen, "links": links}


# Clicks through the demo, at the width of a phone. Then it reports all curves and the status.
CLICKS = """<!doctype html><iframe src="site/index.html" width=390 height=900></iframe><pre id=faults></pre>
<script type=module>
const frame = document.querySelector("iframe"), wait = time => new Promise(done => setTimeout(done, time));
let demo;
while (!(demo = frame.contentDocument.querySelector(".demo"))) await wait(50);
const one = selector => demo.querySelector(selector), button = name => one(`[data-do=${name}]`);
const drawn = () => Object.fromEntries([...demo.querySelectorAll("polyline")].map(
  curve => [curve.classList[0], curve.getAttribute("points").trim().split(/[ ,]+/).map(Number)]));
const found = {}, select = one("select");
for (const overrun of ["raise", "last", "mean"]) {
  select.value = overrun;
  select.dispatchEvent(new Event("change"));
  button("step").click();
  button("restart").click();
  while (!button("step").disabled) button("step").click();
  found[overrun] = {...drawn(), said: one("[role=status]").textContent};
}
button("run").click();
await wait(1000);
button("run").click();
const paused = drawn().layer.length / 2;
await wait(1000);
found.paused = [paused, drawn().layer.length / 2, button("run").textContent];
found.focus = [...demo.querySelectorAll("button, select")].map(one => (one.focus(), one.matches(":focus")));
document.querySelector("pre").textContent = JSON.stringify(found);
</script>"""


def curves(file: Path, folder: Path, overrun: str) -> dict[str, np.ndarray]:
    """Returns the right curves: for each network, the mean probability of the right speaker by step."""
    given = json.loads(file.read_text())
    x = np.frombuffer(base64.b64decode(given["x"]), np.int8).reshape(-1, 12) / np.float32(given["scale"])
    parts = np.split(x, np.cumsum(given["lengths"])[:-1])
    joined, found = lnrnn_demo.join(Utterances(parts, np.array(given["labels"]))), {}
    for name, network in given["networks"].items():
        path = folder / f"{name}.safetensors"
        path.write_bytes(base64.b64decode(network["file"]))
        rnn: Any = lnrnn.load(path)
        refused = name == "batch" and overrun == "raise"
        if name == "batch":
            rnn.overrun = overrun
        y = rnn(joined.x[: given["known"] if refused else None])[0].astype(np.float64)
        head = np.frombuffer(base64.b64decode(network["head"]), np.float32)
        size = 9 * y.shape[2]
        scores = np.exp(y @ head[:size].reshape(9, -1).T + head[size:])
        right = scores[:, np.arange(y.shape[1]), joined.labels] / scores.sum(axis=-1)
        found[name] = right.mean(axis=1)
    return found


def difference(points: list[float], expected: np.ndarray) -> float:
    steps, values = np.reshape(points, (-1, 2)).T
    if list(steps) != list(range(1, len(expected) + 1)):
        raise Wrong(f"a curve has the steps {steps}, not 1 to {len(expected)}")
    worst = float(abs(values - expected).max())
    if not worst <= 1e-6:
        raise Wrong(f"a curve differs from lnrnn's by {worst}")
    return worst


def demo(options: argparse.Namespace) -> dict[str, int | str]:
    if not (ROOT / "build/web/lnrnn.wasm").exists():
        raise Missing("needs lnrnn.wasm: make wasm")
    site = built(options)
    with served(site, options.folder) as opened:
        seen, log = opened(CLICKS)
    file, worst = site / "_static/demo.json", 0.0
    for overrun in ("raise", "last", "mean"):
        for name, expected in curves(file, options.folder, overrun).items():
            worst = max(worst, difference(seen[overrun][name], expected))
    if "LnrnnError: lane 0 has 27 steps, but statistics are known for 26" not in seen["raise"]["said"]:
        raise Wrong(f"with raise the page says {seen['raise']['said']}")
    before, after, label = seen["paused"]
    if not 1 <= before == after < 120 or label != "Run" or not all(seen["focus"]) or "CONSOLE" in log:
        raise Wrong(f"pause, focus or console: {seen['paused']} {seen['focus']} {log[-500:]}")
    return {"largest difference": f"{worst:.1e}", "bytes of networks and input": file.stat().st_size}


# Runs the worklet on stored sound, and then its page with a false microphone, a wrong and an absent network.
SOUND = """<!doctype html><img src=held><pre id=faults></pre><script type=module>
const bytes = async name => (await fetch(`site/right/build/web/${name}`)).arrayBuffer();
const module = await WebAssembly.compile(await bytes("lnrnn.wasm")), file = await bytes("gru.safetensors");
const x = Float32Array.from(SAMPLES), context = new OfflineAudioContext(1, x.length, 48000);
await context.audioWorklet.addModule("site/right/examples/web/audio.js");
const buffer = context.createBuffer(1, x.length, 48000);
buffer.copyToChannel(x, 0);
const source = new AudioBufferSourceNode(context, {buffer});
source.connect(new AudioWorkletNode(context, "lnrnn", {processorOptions: {module, file}}))
  .connect(context.destination);
source.start();
const found = {samples: [...(await context.startRendering()).getChannelData(0)], peak: 0};
for (const name of ["right", "wrong", "absent"]) {
  const frame = document.createElement("iframe");
  frame.src = `site/${name}/examples/web/audio.html`;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const page = frame.contentWindow, status = page.document.querySelector("[role=status]");
  let node;
  page.AudioWorkletNode = class extends page.AudioWorkletNode {
    constructor(...all) { node = super(...all); }
  };
  page.document.querySelector("button").click();
  while (!status.textContent) await new Promise(done => setTimeout(done, 50));
  found[name] = status.textContent;
  if (!node) continue;
  const analyser = node.context.createAnalyser(), heard = new Float32Array(2048);
  node.connect(analyser);
  for (let wait = 0; wait < 100 && !found.peak; wait++) {
    await new Promise(done => setTimeout(done, 50));
    analyser.getFloatTimeDomainData(heard);
    found.peak = Math.max(...heard);
  }
}
document.querySelector("pre").textContent = JSON.stringify(found);
await fetch("ended");
</script>"""


def judge_sound(seen: dict[str, Any], expected: np.ndarray) -> None:
    if not np.array_equal(np.array(seen["samples"], np.float32), expected):
        raise Wrong("the worklet's samples have not the bits of lnrnn")
    shown = re.match(r"A step takes \S+ µs, \S+ % of the real-time budget of \S+ ms. Steps", seen["right"])
    if not shown or not seen["peak"] > 0:
        raise Wrong(f"the page says {seen['right']}, and its loudest sample is {seen['peak']}")
    if seen["wrong"] != "LnrnnError: frame must have 64 values, got 128":
        raise Wrong(f"with a network of 64 inputs the page says {seen['wrong']}")
    if not re.fullmatch(r"Error: http://\S+/gru.safetensors has the status 404 .+", seen["absent"]):
        raise Wrong(f"without a network the page says {seen['absent']}")


def audio(options: argparse.Namespace) -> dict[str, int]:
    if not (ROOT / "build/web/lnrnn.wasm").exists() or "sse2" not in lnrnn.cpu_info()["available"]:
        raise Missing("needs lnrnn.wasm, make wasm, and sse2")
    shutil.rmtree(site := options.folder / "sound", ignore_errors=True)
    networks = {"right": lnrnn.GRU(128, 128), "wrong": lnrnn.GRU(64, 128), "absent": None}
    for name, network in networks.items():
        shutil.copytree(ROOT / "examples/web", site / name / "examples/web")
        shutil.copytree(ROOT / "build/web", site / name / "build/web")
        if network is not None:
            lnrnn.save(network, site / name / "build/web/gru.safetensors")
    x = np.random.default_rng(options.seed).uniform(-1, 1, (500, 1, 128)).astype(np.float32)
    with using_isa("sse2"):
        expected = networks["right"](x)[0].ravel()
    with served(site, options.folder) as opened:
        seen, _ = opened(SOUND.replace("SAMPLES", json.dumps(x.ravel().tolist())), clock=REAL)
    judge_sound(seen, expected)
    print(seen["right"])
    return {"samples with equal bits": x.size}


PLANTED = {
    "the page is 3000 pixels wide": "<style>main { width: 3000px }</style>wide",
    "cut off: P": "<p style='width: 3000px'>wide</p>",
    "cut off: TABLE": "<div style='overflow: hidden'><table style='width: 3000px'><tr><td>wide</table></div>",
    "no picture": "<img src='absent.png' width=9>",
    "undefined_name is not defined": "<script>undefined_name()</script>",
    "a script says no": "<script>console.error('no')</script>",
    "it is not dark": "<style>body { background: white !important }</style>",
    "a link to absent.html": "<a href='absent.html'>there</a>",
    "a link to good.html#absent": "<a href='good.html#absent'>there</a>",
}
FRAME = (
    "<!doctype html><meta name=viewport content='width=device-width'><style>"
    "body { background: white; margin: 0 } "
    "@media (prefers-color-scheme: dark) { body { background: black } }</style>"
)
GOOD = (
    "<a href='good.html#here' id=here>there</a><div style='overflow: auto'><table style='width: 3000px'>"
    "<tr><td>it scrolls</table></div>"
)


def control(options: argparse.Namespace) -> dict[str, int]:
    site = options.folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    articles = {"good": GOOD, **{str(k): planted for k, planted in enumerate(PLANTED.values())}}
    for name, article in articles.items():
        page = f"{FRAME}<main style='overflow: auto'><article>{article}</article></main>"
        (site / f"{name}.html").write_text(page)
    faults = looked_at(site, options.folder, False)[2]
    for number, sign in enumerate(PLANTED):
        if not any(fault.startswith(f"{number}.html") and sign in fault for fault in faults):
            raise Wrong(f"not reported: {sign}, only {faults}")
    if any(fault.startswith("good.html") for fault in faults):
        raise Wrong(f"a page without a fault: {faults}")
    for points in ([1, 0.5, 2, 0.250002], [1, 0.5]):
        with suppress(Wrong):
            difference(points, np.array([0.5, 0.25]))
            raise AssertionError(f"not reported: the curve {points}")
    said = "A step takes 13.3 µs, 0.5 % of the real-time budget of 2.67 ms. Steps until now: 375."
    refused = "LnrnnError: frame must have 64 values, got 128"
    absent = "Error: http://127.0.0.1:8000/build/web/gru.safetensors has the status 404 File not found"
    right = {"samples": [0.5, 0.25], "right": said, "peak": 0.5, "wrong": refused, "absent": absent}
    judge_sound(right, np.array([0.5, 0.25], np.float32))
    faulty = [
        {"samples": [0.5, 0.25 + 2e-8]},
        {"right": refused},
        {"peak": 0},
        {"wrong": said},
        {"absent": refused},
    ]
    for fault in faulty:
        with suppress(Wrong):
            judge_sound(right | fault, np.array([0.5, 0.25], np.float32))
            raise AssertionError(f"not reported: {fault}")
    return {"planted faults": len(PLANTED) + 2 + len(faulty)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", type=Path, help="folder of a built site; default: build it")


PARTS = {"control": control, "pages": pages, "demo": demo, "audio": audio}
