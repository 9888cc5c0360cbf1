"""The built pages, read as files: complete, linked, described, with no maths left unrendered."""

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

from attn.palette import ROLES

ROOT = Path(__file__).parents[1]
SITE = Path(os.environ.get("BOOK_SITE", ROOT / "_build" / "html"))
MIN_CHARACTERS = 1500  # a page with less text than this is a stub


def site_pages():
    """Return the names of all pages; index.html only forwards to the landing page."""
    pages = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
    pages = [name for name in pages if name != "index.html" and not name.startswith("_static")]
    return pages or ["no page"]


def toc_pages():
    """Return the files that _toc.yml names, in order."""

    def walk(node):
        if isinstance(node, list):
            return [name for item in node for name in walk(item)]
        if not isinstance(node, dict):
            return []
        own = [node[key] for key in ("root", "file") if key in node]
        parts = ("parts", "chapters", "sections")
        return own + [name for key in parts for name in walk(node.get(key, []))]

    return walk(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))


@cache
def page(name):
    """Return a page as a tree."""
    path = SITE / name
    assert path.is_file(), f"{name} is not in {SITE}: build the book first, with `make site`"
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def article(name):
    """Return the part of a page that the book wrote."""
    return page(name).select_one("article.bd-article")


def prose(name):
    """Return a page's text without code, output and rendered maths."""
    tree = BeautifulSoup(str(article(name) or ""), "html.parser")
    for part in tree.select("pre, code, script, style, .katex, .cell_output, .viewcode-link"):
        part.decompose()
    return tree.get_text(" ")


@cache
def anchors(name):
    return {tag.get("id") for tag in page(name).select("[id]")} | {
        tag["name"] for tag in page(name).select("a[name]")
    }


@pytest.mark.parametrize("name", toc_pages())
def test_every_page_of_the_toc_is_more_than_a_stub(name):
    text = " ".join(article(f"{name}.html").get_text(" ").split())
    assert len(text) > MIN_CHARACTERS
    assert len(article(f"{name}.html").select("h1")) == 1


@pytest.mark.parametrize("name", site_pages())
def test_every_picture_says_what_it_shows(name):
    seen = set()
    for picture in page(name).select("article.bd-article img"):
        alt = " ".join(picture.get("alt", "").split())
        where = f"{picture.get('src')}: alt={alt!r}"
        assert len(alt.split()) >= 4, f"{where} is no description"
        assert not re.search(r"_images/|\.(png|svg|jpe?g|gif|webp)\b", alt), f"{where} is a file"
        assert alt not in seen, f"{where} stands on two figures of the page"
        seen.add(alt)


@pytest.mark.parametrize("name", site_pages())
def test_no_markup_is_left_in_the_text(name):
    tree = page(name)
    assert not tree.select(".katex-error")
    assert not [m for m in tree.select("math") if not m.find_parent(class_="katex")]
    text = prose(name)
    for left in (r"\$", r"\\[(\[a-zA-Z]", r":::", r"\{[a-z:]+\}`", r"```", r"^\s*\[practice:"):
        found = re.search(rf".{{0,40}}{left}.{{0,40}}", text)
        assert not found, f"raw markup: {found[0]!r}"


@pytest.mark.parametrize("name", site_pages())
def test_every_inner_link_leads_somewhere(name):
    broken = []
    for tag in page(name).select("[href], [src]"):
        address = tag.get("href") or tag.get("src") or ""
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address in ("", "#"):
            continue
        target = (SITE / name).parent / unquote(parts.path) if parts.path else SITE / name
        target = Path(os.path.normpath(target))
        if not target.is_file():
            broken.append(address)
        elif parts.fragment and target.suffix == ".html":
            inside = anchors(str(target.relative_to(SITE)))
            if unquote(parts.fragment) not in inside:
                broken.append(address)
    assert not broken


def test_the_first_page_is_the_landing_page():
    refresh = page("index.html").select_one('meta[http-equiv="Refresh" i]')
    assert refresh["content"].endswith("url=book/intro.html")


def test_the_sitemap_names_every_page():
    sitemap = (SITE / "sitemap.xml").read_text(encoding="utf-8")
    missing = [name for name in toc_pages() if f"/{name}.html<" not in sitemap]
    assert not missing, "an incremental build lists only what it rebuilt: run `make site`"


def test_the_style_sheet_has_the_colours_of_the_figures():
    style = (ROOT / "book" / "_static" / "book.css").read_text(encoding="utf-8").lower()
    for name, role in ROLES.items():
        assert re.findall(rf"--role-{name}: (#\w+);", style)[0] == role.color.lower()
        assert f'[style*="color:{role.color}" i]'.lower() in style
