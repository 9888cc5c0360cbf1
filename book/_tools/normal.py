"""One normal form for notebooks, so that running a chapter twice gives the same bytes."""

import base64
import hashlib
import io
import re

import nbformat
from PIL import Image

KEPT = ("tags", "mystnb", "practice", "generated", "reason", "slideshow", "nbgrader")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py",
            "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?")


def dumps(nb):
    """Return a notebook's one text: sorted keys, one space of indent, a newline at the end."""
    return nbformat.writes(nb, version=4).rstrip("\n") + "\n"


def normalise(nb):
    """Return the notebook in its normal form; what it says and shows stays the same."""
    nb = nbformat.from_dict(nb)
    nb.nbformat, nb.nbformat_minor = 4, 5
    nb.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    taken, count = set(), 0
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({k: cell.metadata[k] for k in KEPT
                                            if cell.metadata.get(k)})
        cell.source = tidy(cell.source)
        cell.id = _steady_id(cell, taken)
        if cell.cell_type == "code":
            # A cell that was never run keeps its null: the checks must see it.
            count += cell.execution_count is not None
            cell.execution_count = count if cell.execution_count is not None else None
            cell.outputs = _outputs(cell)
    return nb


def tidy(source):
    """Return a cell's text without white space at the ends of its lines, nor empty lines around."""
    return "\n".join(line.rstrip() for line in source.strip("\n").split("\n"))


def digest(source):
    """Return ten digits that stand for a cell's text in its normal form."""
    return hashlib.blake2b(tidy(source).encode(), digest_size=5).hexdigest()


def _steady_id(cell, taken):
    """Keep a chosen id; replace one that a tool drew at random by a digest of the cell's text."""
    cell_id = cell.get("id", "")
    if not cell_id or RANDOM_ID.fullmatch(cell_id) or cell_id in taken:
        stem, copies = f"{cell.cell_type}-{digest(cell.source)}", 1
        cell_id = stem
        while cell_id in taken:
            copies += 1
            cell_id = f"{stem}-{copies}"
    taken.add(cell_id)
    return cell_id


def _outputs(cell):
    """Join the neighbouring pieces of one stream, drop metadata, shrink the pictures."""
    outputs = []
    for output in cell.outputs:
        if (output.output_type == "stream" and outputs and outputs[-1].output_type == "stream"
                and outputs[-1].name == output.name):
            outputs[-1].text += output.text
            continue
        if "metadata" in output:
            output.metadata = nbformat.from_dict({})
        if output.output_type == "execute_result":
            output.execution_count = cell.execution_count
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = small_png(output.data["image/png"])
        outputs.append(output)
    return outputs


def small_png(encoded):
    """Return a base64 PNG with at most 256 colours, which the eye does not tell from the original.

    Text and lines keep their shades; only continuous tones move, by less than the eye sees. A
    picture that has a palette already, or is larger for it, stays as it is.
    """
    original = base64.b64decode(encoded)
    image = Image.open(io.BytesIO(original))
    if image.mode == "P":
        return encoded
    dpi = {"dpi": image.info["dpi"]} if "dpi" in image.info else {}
    opaque = image.mode != "RGBA" or image.getchannel("A").getextrema()[0] == 255
    if opaque:
        image = image.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=2,
                                              dither=Image.Dither.NONE)
    else:
        image = image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    small = io.BytesIO()
    image.save(small, "PNG", optimize=True, **dpi)
    if small.tell() >= len(original):
        return encoded
    return base64.b64encode(small.getvalue()).decode() + "\n"
