"""What the measurements ran on, in words."""

from __future__ import annotations

import platform
from pathlib import Path


def describe_cpu() -> str:
    """The CPU's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
