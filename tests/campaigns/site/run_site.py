"""Checks the site of `make docs` in a browser: every page at the width of a phone and a desktop, light and
dark.

pages: no page is wider than the window, nothing is cut off, no script fails, no picture is missing, and dark
pages are dark. Tables and code may scroll in a box. links: every link within the site has a page and a
section. search: words have results. copy: the button of each block of code copies the code without prompts.
control: pages with a planted fault of each kind must be reported. Screenshots of all pages are kept in the
folder.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

from browser import Browser, opened

from outcome import Missing, Wrong, done
from source_copy import ROOT

WIDTHS = (390, 1280)
THEMES = ("light", "dark")
QUICK = ("index.html", "which_cell.html", "benchmarks.html", "studies/index.html", "api/networks.html")

# JavaScript that returns a list of faults. An element that is wider than the window must be in a box that
# scrolls.
LAYOUT = """(() => {
  const wide = document.documentElement.clientWidth, faults = [];
  if (document.documentElement.scrollWidth > wide)
    faults.push(`the page is ${document.documentElement.scrollWidth} pixels wide, the window ${wide}`);
  const scrolls = one => ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
  const fits = one => one.getBoundingClientRect().right <= wide + 1;
  const article = document.querySelector("article");
  for (const one of article.querySelectorAll("table, pre, img, svg, math, p, li, h1, h2, h3")) {
    let box = one;
    while (box !== article && !fits(one) && !(scrolls(box) && fits(box))) box = box.parentElement;
    if (box === article) faults.push(`cut off: ${one.tagName} ${one.textContent.trim().slice(0, 40)}`);
  }
  for (const one of document.images)
    if (one.complete && !one.naturalWidth) faults.push(`no picture: ${one.getAttribute("src")}`);
  return faults;
})()"""
# JavaScript that returns the brightness of the page's background, 0 to 1.
BRIGHTNESS = """(() => {
  const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
  return (r + g + b) / 765;
})()"""
# JavaScript that presses a button for copying, and returns the clipboard.
COPIED = """(async () => {
  await navigator.clipboard.writeText("");
  document.querySelectorAll("button.copybtn")[%d].click();
  for (let k = 0; k < 100; ++k) {
    const text = await navigator.clipboard.readText();
    if (text) return text;
    await new Promise(resolve => setTimeout(resolve, 10));
  }
  return "";
})()"""
# JavaScript that waits for the results of a search, and returns how many there are.
FOUND = """(async () => {
  const count = () => document.querySelectorAll("#search-results li a").length;
  for (let k = 0, before = -1; k < 100 && !(before > 0 && before === count()); ++k) {
    before = count();
    await new Promise(resolve => setTimeout(resolve, 300));
  }
  return count();
})()"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", type=Path, help="folder of a built site; default: build it")


def built(options: argparse.Namespace) -> Path:
    if options.site:
        return Path(options.site)
    absent = [
        name for name in ("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx_copybutton")
        if importlib.util.find_spec(name) is None
    ]  # fmt: skip
    if absent:
        raise Missing(f"needs {' and '.join(absent)}: make .venv/.docs")
    site = options.folder.parent / "html"
    done([sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(site)])
    return site


def names_of(site: Path, quick: bool) -> list[str]:
    names = sorted(
        str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts
    )
    return [name for name in names if not quick or name in QUICK]


def check_scripts(browser: Browser) -> list[str]:
    """Returns errors of scripts, and of files that failed to load, in the opened page."""
    faults = []
    for event in browser.events:
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            faults.append(f"a script fails: {said['exceptionDetails']['text']}")
        elif event.get("method") == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            faults.append(f"a script complains: {said['args'][0].get('value')}")
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            entry = said["entry"]
            if not entry.get("url", "").endswith("/favicon.ico"):
                faults.append(f"{entry['text']} {entry.get('url', '')}")
    return faults


def look(browser: Browser, url: str, width: int, theme: str, picture: Path) -> list[str]:
    """Returns the faults of a page in a window of this width, and writes a screenshot to ``picture``."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
    )
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.open(url)
    faults = [*browser.value(LAYOUT), *check_scripts(browser)]
    if (browser.value(BRIGHTNESS) < 0.5) != (theme == "dark"):
        faults.append(f"the page is not {theme}")
    shot = browser.call("Page.captureScreenshot", format="png")["data"]
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(base64.b64decode(shot))
    return faults


def faults_of_pages(site: Path, folder: Path, quick: bool) -> tuple[int, list[str]]:
    seen, faults = 0, list[str]()
    with opened(site, folder) as (browser, address):
        for name in names_of(site, quick):
            for width in WIDTHS:
                for theme in THEMES:
                    picture = folder / f"{width}-{theme}" / name.replace("/", "-").replace(".html", ".png")
                    found = look(browser, f"{address}/{name}", width, theme, picture)
                    faults += [f"{name} at {width} pixels, {theme}: {fault}" for fault in found]
                    seen += 1
    return seen, faults


class _Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.sections = list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.sections |= {given.get("id") or "", given.get("name") or ""}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")


def faults_of_links(site: Path) -> tuple[int, list[str]]:
    pages = {name: _Links((site / name).read_text()) for name in names_of(site, False)}
    seen, faults = 0, list[str]()
    for name, page in pages.items():
        for link in page.links:
            target, section = urldefrag(unquote(urljoin(f"http://site/{name}", link)))
            if target.startswith("http://site/"):
                seen += 1
                path = target.removeprefix("http://site/")
                right = (
                    section in pages[path].sections if section and path in pages else (site / path).is_file()
                )
                if not right:
                    faults.append(f"{name}: a link to {link}")
    return seen, faults


def faults_of_copies(site: Path, folder: Path, quick: bool) -> tuple[int, list[str]]:
    seen, faults = 0, list[str]()
    with opened(site, folder) as (browser, address):
        rights = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        browser.call("Browser.grantPermissions", permissions=rights, origin=address)
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        for name in names_of(site, quick):
            browser.open(f"{address}/{name}")
            for number in range(browser.value("document.querySelectorAll('button.copybtn').length")):
                text = browser.value(COPIED % number)
                seen += 1
                if not text.strip():
                    faults.append(f"{name}: block {number} copies nothing")
                elif any(line.startswith(("$ ", ">>> ")) for line in text.splitlines()):
                    faults.append(f"{name}: block {number} copies a prompt: {text[:40]!r}")
    return seen, faults


def refuse(faults: list[str]) -> None:
    print(*faults, sep="\n")
    if faults:
        raise Wrong(f"{len(faults)} faults: {faults[0]}")


def pages(options: argparse.Namespace) -> dict[str, int]:
    site = built(options)
    seen, faults = faults_of_pages(site, options.folder, options.quick)
    refuse(faults)
    return {"pages": seen // (len(WIDTHS) * len(THEMES)), "views": seen}


def links(options: argparse.Namespace) -> dict[str, int]:
    seen, faults = faults_of_links(built(options))
    refuse(faults)
    return {"links": seen}


def search(options: argparse.Namespace) -> dict[str, int]:
    figures = {}
    with opened(built(options), options.folder) as (browser, address):
        for word in ("stream", "from_torch", "int8", "threads"):
            browser.open(f"{address}/search.html?q={word}")
            figures[f"results for {word}"] = browser.value(FOUND)
        refuse([f"{name} is {count}" for name, count in figures.items() if not count])
        refuse(check_scripts(browser))
    return figures


def copy(options: argparse.Namespace) -> dict[str, int]:
    seen, faults = faults_of_copies(built(options), options.folder, options.quick)
    refuse([*faults, *(["no page has a copy button"] if not seen else [])])
    return {"blocks": seen}


PLANTED = {
    "the page is 3000 pixels wide": "<style>main { width: 3000px }</style>wide",
    "cut off: P": "<p style='width: 3000px'>wide</p>",
    "cut off: TABLE": "<div style='overflow: hidden'><table style='width: 3000px'><tr><td>wide</table></div>",
    "no picture": "<img src='absent.png' width=9>",
    "a script fails": "<script>undefined_name()</script>",
    "a script complains": "<script>console.error('no')</script>",
    "the page is not dark": "<style>body { background: white !important }</style>",
    "a link to absent.html": "<a href='absent.html'>there</a>",
    "a link to good.html#absent": "<a href='good.html#absent'>there</a>",
    "copies a prompt": "<button class=copybtn onclick='navigator.clipboard.writeText(\"$ ls\")'>it</button>",
    "copies nothing": "<button class=copybtn>copy</button>",
}
FRAME = (
    "<!doctype html><meta name=viewport content='width=device-width'><style>"
    "body { background: white; margin: 0 } "
    "@media (prefers-color-scheme: dark) { body { background: black } }</style>"
)
GOOD = (
    "<a href='good.html#here' id=here>there</a><div style='overflow: auto'><table style='width: 3000px'>"
    "<tr><td>it scrolls</table></div>"
    "<button class=copybtn onclick='navigator.clipboard.writeText(\"ls\")'>copy</button>"
)


def write(path: Path, article: str) -> None:
    path.write_text(f"{FRAME}<main style='overflow: auto'><article>{article}</article></main>")


def control(options: argparse.Namespace) -> dict[str, int]:
    site = options.folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    write(site / "good.html", GOOD)
    for number, planted in enumerate(PLANTED.values()):
        write(site / f"{number}.html", planted)
    faults = faults_of_pages(site, options.folder, False)[1] + faults_of_links(site)[1]
    faults += faults_of_copies(site, options.folder, False)[1]
    for number, sign in enumerate(PLANTED):
        if not any(fault.startswith(f"{number}.html") and sign in fault for fault in faults):
            raise Wrong(f"not reported: {sign}, only {faults}")
    if any(fault.startswith("good.html") for fault in faults):
        raise Wrong(f"a page without a fault: {faults}")
    return {"planted faults": len(PLANTED)}


PARTS = {"control": control, "pages": pages, "links": links, "search": search, "copy": copy}
