"""Which machine a result comes from, and the name of its record.

A record belongs to one machine: `make bench` adds it, or replaces that of the very same machine.
"""

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import uuid
from pathlib import Path

import numpy  # with it comes the BLAS that is asked for below
import threadpoolctl
import torch

# What tells one machine from another; versions are not in it, so a newer torch replaces.
IDENTITY = ("cpu", "family", "cores", "simd", "memory_gib", "system", "gpu")

# Instructions that matrix products and exponentials are written in, on x86 and on ARM.
SIMD = re.compile(r"avx2|avx512f|avx512_(bf16|fp16|vnni)|avx_vnni|amx_\w+|fma|asimd|sve2?")


def describe(gpu=None):
    """The machine and the versions that a result is worth nothing without.

    `digest` also takes in what names the machine itself and is not written down: the system's
    number, the name in its network, the address of its network card. Two machines that agree in
    all of this, such as clones of one image on one model, need --out with a name for each.
    """
    described = {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "family": _family(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "simd": _simd(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpu,
        "blas": _blas(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "threadpoolctl": threadpoolctl.__version__,
        "torch_build": _torch_build(),
        "date": datetime.date.today().isoformat(),
    }
    return described | {"digest": digest(described, _host())}


def digest(described, host):
    """Eight hexadecimal digits of the machine described, whose host is named outside it."""
    known = [described[field] for field in IDENTITY] + [host]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:8]


def file_name(described):
    """A name such as amd-epyc-2-cores-0c1d2e3f for the machine described."""
    text = f"{described['gpu'] or described['cpu']} {described['cores']} cores".lower()
    kept = "".join(c if c.isalnum() else " " for c in text)
    return "-".join([*kept.split(), described["digest"]])


def _host():
    number = ""
    with contextlib.suppress(OSError):
        number = Path("/etc/machine-id").read_text().strip()
    # Without a network card getnode draws a number: a record too many, but nobody's is lost.
    return [number, platform.node(), uuid.getnode()]


def _cpuinfo(field):
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return None


def _family():
    """Family, model and stepping: two generations can share one model name."""
    numbers = [_cpuinfo(field) for field in ("cpu family", "model", "stepping")]
    return "/".join(numbers) if all(numbers) else platform.processor()


def _simd():
    flags = (_cpuinfo("flags") or _cpuinfo("Features") or "").split()
    return sorted(flag for flag in flags if SIMD.fullmatch(flag))


def _blas():
    """NumPy's BLAS and the kernel that it chose for this processor."""
    found = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    return [
        f"{one['internal_api']} {one['version']} {one.get('architecture', '')}".strip()
        for one in found
    ]


def _torch_build():
    """What torch's kernels were built from and run with, one line each."""
    lines = (line.strip(" -") for line in torch.__config__.show().splitlines()[1:])
    return [line for line in lines if line and not line.startswith("Build settings")]


def _memory_gib():
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return None
