"""Cut the icon fonts and their style rules down to the icons that the pages show.

The theme carries the whole of Font Awesome: 300 KB of fonts and 100 KB of rules on each page, for
about twenty icons. WOFF (not WOFF2) needs nothing beyond fontTools, which Matplotlib brings.
"""

import logging
import re
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

STYLE = "styles/pydata-sphinx-theme.css"
RULE = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"(\\[0-9a-f]+|[^"\\])"\}')
FACE = re.compile(r"url\((\.\./vendor/fontawesome/webfonts/(fa-[a-z]+-\d+))\.woff2\)[^}]*")


def used_classes(html):
    """Return the icon classes that any page or script names."""
    texts = [*html.rglob("*.html"), *(html / "_static").rglob("*.js")]
    return {
        name
        for path in texts
        if path.name != "fontawesome.js"
        for name in re.findall(r"\bfa-[a-z0-9-]+", path.read_text(encoding="utf-8"))
    }


def cut_icons(app, error):
    """Rewrite the theme's style sheet and the fonts that it names."""
    style = Path(app.outdir, "_static", STYLE)
    if error or app.builder.name != "html" or not style.exists():
        return
    used, points = used_classes(Path(app.outdir)), set()

    def keep(rule):
        if not used & set(re.findall(r"fa-[a-z0-9-]+", rule[1])):
            return ""
        points.add(int(rule[2][1:], 16) if rule[2][0] == "\\" else ord(rule[2]))
        return rule[0]

    css = RULE.sub(keep, style.read_text(encoding="utf-8"))
    # The book theme and the style of the code cells name icons by number.
    for other in Path(app.outdir, "_static").rglob("*.css"):
        text = css if other == style else other.read_text(encoding="utf-8")
        points |= {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', text)}
    for path, name in FACE.findall(css):
        source = style.parent / f"{path}.ttf"
        font = TTFont(source, recalcTimestamp=False)
        cutter = subset.Subsetter(subset.Options(notdef_outline=True, glyph_names=False))
        cutter.populate(unicodes=points)
        cutter.subset(font)
        font.flavor = "woff"
        font.save(source.with_name(f"{name}.woff"))
    css = FACE.sub(r'url(\1.woff) format("woff")', css)
    style.write_text(css, encoding="utf-8")


def setup(app):
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    app.connect("build-finished", cut_icons, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
