"""The built pages in a real browser: nothing from elsewhere, nothing that hinders a reader.

Needs Chromium. Without it these checks are skipped and say so; with REQUIRE_BROWSER=1 they fail.
"""

import gzip
import http.server
import os
import shutil
import threading
from functools import cache, partial
from importlib.resources import files
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from .test_site import SITE, page, site_pages

BUDGET_KB = 500  # a page with all that it fetches, gzipped
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
CONTRAST = 4.5  # WCAG 2.2, 1.4.3
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
TEXT = {".html", ".css", ".js", ".svg", ".json", ".xml", ".txt"}
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")

# What sticks out of a narrow page, unless something around it scrolls.
STICKS_OUT = """() => {
  const limit = document.documentElement.clientWidth + 1;
  const scrolls = box => box && (
    ["auto", "scroll"].includes(getComputedStyle(box).overflowX) || scrolls(box.parentElement));
  const out = [...document.querySelectorAll("article.bd-article *")].filter(box => {
    const {right, width} = box.getBoundingClientRect();
    return right > limit && width > 0 && !box.closest(".katex-mathml, .katex svg, .visually-hidden")
      && !scrolls(box.parentElement);
  }).map(box => box.outerHTML.slice(0, 120));
  const page = document.documentElement.scrollWidth;
  return page > limit ? [`the page is ${page} wide`, ...out] : out;
}"""

# Contrast of each word and symbol in code, signatures, formulas and roles with what is painted
# behind it: axe skips what is hidden from screen readers, as the visible half of a formula is, and
# takes most of its time for the many coloured words of code.
SMALL_PARTS = ".highlight *, .sig *, .katex-html *"
FAINT = """([limit, parts]) => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = box => {
    for (; box; box = box.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(box).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const text = box => [...box.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const boxes = [...document.querySelectorAll(`${parts}, [class^="role-"]`)].filter(text);
  return boxes.flatMap(box => {
    const pair = [light(parse(getComputedStyle(box).color)), light(behind(box))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    return ratio < limit ? [`${ratio.toFixed(2)}: ${box.outerHTML.slice(0, 100)}`] : [];
  });
}"""

LEAVE_OUT = """parts => axe.configure({rules: [
  {id: "color-contrast", selector: `:not(${parts})`}]})"""

# preload would fetch the style sheets once more, by addresses that are wrong for @import.
FINDINGS = """async rules => (await axe.run(
  {resultTypes: ["violations"], preload: false, rules})).violations.flatMap(
  rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)}`))"""


def find_chromium():
    """Return the path of Chromium or Chrome, or None."""
    names = (os.environ.get("CHROMIUM"), *BROWSERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def weight(path):
    """Return the bytes that a server which compresses text sends for a file."""
    data = path.read_bytes()
    return len(gzip.compress(data, 9)) if path.suffix in TEXT else len(data)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing: the tests report what was not found."""


@pytest.fixture(scope="session")
def browser():
    executable = find_chromium()
    if executable is None:
        message = "Chromium was not found: the browser checks were NOT run"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address():
    assert SITE.is_dir(), f"{SITE} is not there: build the book first, with `make site`"
    handler = partial(Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Visit:
    """One page in a context of its own, with all that it asked for and complained about."""

    def __init__(self, browser, address, name, scheme="light"):
        self.address, self.requests, self.elsewhere, self.complaints = address, set(), set(), []
        self.context = browser.new_context(
            color_scheme=scheme, viewport=DESKTOP, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.route("**/*", self._route)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", self._listen)
        self.page.on("response", self._answer)
        self.page.goto(f"{address}/{name}", wait_until="load")

    def _route(self, route):
        url = route.request.url
        if url.startswith((self.address, "data:", "blob:")):
            self.requests.add(unquote(urlsplit(url).path).lstrip("/"))
            route.continue_()
        else:
            self.elsewhere.add(url)
            route.abort()

    def _listen(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _answer(self, response):
        if response.status >= 400:
            self.complaints.append(f"{response.status}: {response.url}")

    def at(self, viewport):
        self.page.set_viewport_size(viewport)
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => setTimeout(r)))")

    def axe(self, **rules):
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE)
            self.page.evaluate(LEAVE_OUT, SMALL_PARTS)
        return self.page.evaluate(
            FINDINGS, {name.replace("_", "-"): {"enabled": on} for name, on in rules.items()}
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", site_pages())
def test_page(browser, address, name, scheme):
    with Visit(browser, address, name, scheme) as visit:
        assert visit.page.evaluate("document.documentElement.dataset.theme") == scheme
        assert visit.axe() == []
        assert visit.page.evaluate(FAINT, [CONTRAST, SMALL_PARTS]) == []
        visit.at(PHONE)
        assert visit.page.evaluate(STICKS_OUT) == []
        if scheme == "light":  # what a narrow page adds does not depend on colour
            assert visit.axe(color_contrast=False) == []
        assert visit.elsewhere == set(), "requests to others"
        assert visit.complaints == []
        sizes = {
            path: weight(SITE / path) / 1000 for path in visit.requests if (SITE / path).is_file()
        }
        heaviest = sorted(sizes.items(), key=lambda item: -item[1])[:6]
        assert sum(sizes.values()) <= BUDGET_KB, f"{sum(sizes.values()):.0f} KB: {heaviest}"


def test_the_book_opens_from_the_file_system(browser):
    with Visit(browser, SITE.as_uri(), "index.html") as visit:
        visit.page.wait_for_url("**/book/intro.html")
        visit.page.wait_for_load_state()
        visit.page.get_by_role("link", name="Notation and shapes").first.click()
        visit.page.wait_for_url("**/book/notation.html")
        assert visit.elsewhere == set()
        assert visit.complaints == []


def test_search_finds_a_word(browser, address):
    with Visit(browser, address, "search.html?q=softmax") as visit:
        visit.page.locator("#search-results li a").first.wait_for()
        assert visit.complaints == []


def test_a_reader_can_choose_the_dark(browser, address):
    with Visit(browser, address, "book/notation.html") as visit:
        query = visit.page.locator(".role-query").first
        assert query.evaluate("e => getComputedStyle(e).color") == "rgb(0, 90, 156)"
        button = visit.page.locator("article .theme-switch-button, .theme-switch-button").last
        button.focus()
        for _ in range(3):  # auto, light, dark
            if visit.page.evaluate("document.documentElement.dataset.theme") == "dark":
                break
            visit.page.keyboard.press("Enter")
        assert query.evaluate("e => getComputedStyle(e).color") == "rgb(108, 182, 255)"


def test_ticked_objectives_are_remembered(browser, address):
    name = next(name for name in site_pages() if page(name).select(".task-list-item"))
    with Visit(browser, address, name) as visit:
        box = visit.page.locator(".task-list-item").nth(1).get_by_role("checkbox")
        box.check()
        visit.page.reload()
        assert visit.page.get_by_role("checkbox", checked=True).count() == 1
        assert box.is_checked()
        assert visit.complaints == []


def test_a_wide_formula_scrolls_by_keyboard(browser, address):
    with Visit(browser, address, "book/notation.html") as visit:
        visit.at({"width": 320, "height": 640})
        formula = visit.page.locator(".katex-display[tabindex='0']").first
        formula.focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.wait_for_function("e => e.scrollLeft > 0", arg=formula.element_handle())
