"""What this book changes in the pages that Sphinx and the theme make.

Nothing is fetched from elsewhere, scripts that no page uses are left out, and what an
accessibility checker finds in the theme is mended. Each edit may run twice on a page: incremental
builds rewrite only the pages that changed.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]


def expand_modules(app, docname, source):
    """Turn each line ``% module attn.x`` of the API pages into the section of that module."""
    if docname.startswith("book/api"):
        section = "## `{0}`\n\n```{{eval-rst}}\n.. automodule:: {0}\n   :members:\n```"
        source[0] = re.sub(
            r"^% module (\S+)$", lambda m: section.format(m[1]), source[0], flags=re.MULTILINE
        )


def keep_columns(paragraph):
    """Make a paragraph with columns or indented lines a literal block: it stays as it is."""
    laid_out = re.search(r"^ +\S|\S {3,}\S", paragraph, re.MULTILINE)
    if not laid_out or ">>> " in paragraph:
        return paragraph
    return ".. code-block:: text\n\n" + "\n".join("    " + line for line in paragraph.split("\n"))


def plain_docstring(app, what, name, obj, options, lines):
    """Let a docstring be plain text: |x| is no substitution, and Source: ends a section."""
    if what == "module":
        lines[:] = "\n\n".join(map(keep_columns, "\n".join(lines).split("\n\n"))).split("\n")
    in_code = False
    for number, line in enumerate(lines):
        in_code = line.lstrip().startswith(">>>") or (in_code and line.strip() != "")
        if not in_code and not (what == "module" and line.startswith("    ")):
            lines[number] = re.sub(r"`[^`]*`|\|", lambda m: r"\|" if m[0] == "|" else m[0], line)
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("Source: "):  # napoleon ends a section at two empty lines
            lines[number : number + 1] = ["", "**Source:** " + lines[number][len("Source: ") :]]


def source_link(app):
    """Return linkcode's function from an object to its lines in the repository."""
    options = app.config.html_theme_options
    base = f"{options['repository_url']}/blob/{options['repository_branch']}"

    def resolve(domain, info):
        thing = import_module(info["module"])
        for name in info["fullname"].split("."):
            thing = getattr(thing, name, None)
        try:
            file = Path(inspect.getsourcefile(inspect.unwrap(thing))).relative_to(ROOT)
            lines, first = inspect.getsourcelines(thing)
        except (TypeError, ValueError, OSError):  # a constant, a property, something not ours
            return None
        return f"{base}/{file}#L{first}-L{first + len(lines) - 1}"

    return resolve


def link_sources(app, config):
    """Set the function; _config.yml can hold none."""
    config.linkcode_resolve = source_link(app)


def always_finish(app, env, added, changed, removed):
    """Rebuild the landing page each time: Sphinx copies style sheets only when it builds a page."""
    return [app.config.root_doc]


def drop_unused_assets(app, pagename, templatename, context, doctree):
    """Drop the scripts of thebe (loaded twice by Jupyter Book) and styles that do not serve."""
    kept, bodies = [], set()
    for script in context.get("script_files", []):
        name = str(getattr(script, "filename", script) or "")
        body = str(getattr(script, "attributes", {}).get("body") or "")
        if "thebe" in name or "THEBE" in body or "thebe" in body:
            continue
        if body and body in bodies:
            continue
        bodies.add(body)
        kept.append(script)
    context["script_files"] = kept
    # book.css says how formulas stand; katex-math.css scrolls a part hidden from screen readers.
    unused = re.compile("fonts.googleapis|thebe|katex-math")
    styles = context.get("css_files", [])
    context["css_files"] = [s for s in styles if not unused.search(str(getattr(s, "filename", s)))]


EDITS = [
    # Icons come from the font; the script that draws them as SVG is half a megabyte.
    (r"\s*<script[^>]*fontawesome(?:\.min)?\.js[^>]*></script>", ""),
    # The accessible name must contain the visible text, so the text itself is the name.
    (r'(<button[^>]*search-button-field[^>]*?) aria-label="[^"]*"', r"\1"),
    (r'(<summary[^>]*?) aria-label="[^"]*"', r"\1"),
    (
        r'<div id="pst-primary-sidebar"(?! role)',
        r'<div id="pst-primary-sidebar" role="region" aria-label="Book"',
    ),
    (
        r'<summary><span class="toctree-toggle" role="presentation">',
        '<summary><span class="visually-hidden">Pages below</span>'
        '<span class="toctree-toggle" role="presentation">',
    ),
    (r'role="doc-biblioentry"', 'role="listitem"'),
    # A task list is a reader's own: boxes with a label, free to tick (book.js remembers).
    (
        r'(<li class="task-list-item">\s*(?:<p>)?)<input class="task-list-item-checkbox"[^>]*>\s*'
        r"((?:(?!<li|<ul|<ol).)*?)((?:</p>)?\s*</li>)",
        r'\1<label><input class="task-list-item-checkbox" type="checkbox">\2</label>\3',
    ),
]


def mend_pages(app, error):
    """Edit the finished pages."""
    if error or app.builder.name != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = mended = page.read_text(encoding="utf-8")
        for pattern, replacement in EDITS:
            mended = re.sub(pattern, replacement, mended, flags=re.DOTALL)
        if mended != text:
            page.write_text(mended, encoding="utf-8")


def setup(app):
    app.connect("config-inited", link_sources)
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("env-get-outdated", always_finish)
    app.connect("source-read", expand_modules)
    app.connect("html-page-context", drop_unused_assets, priority=900)
    app.connect("build-finished", mend_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
