"""Compile the kernel with the system's C++ compiler, and load it.

A build is one shared library, named after everything it depends on: the instruction set, torch's
version, the compiler and its flags, the sources. It is written under a temporary name and renamed,
so that jobs that share a folder never load half a file. It ends with its own SHA-256, which loaders
do not read: one file, so that no job sees the digest of another build than the one beside it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mamba_cpu.errors import MambaCpuError

_loaded: dict[str, Path] = {}  # by level: torch aborts the process at a second one

SOURCES = Path(__file__).parent / "csrc"

# What the CPU must offer, and how the compiler is told to use it, best first. Explicit features
# and no -march=native: the name of the build then says what it needs.
LEVELS: dict[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "portable": (),
}

# No -ffast-math: linked into a library, it flushes subnormals to zero in the whole process.
# The two -fno- flags only drop errno and floating-point traps, which nobody here reads.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fopenmp")

LONGEST_BUILD = 3600  # seconds, after which nobody compiles in a folder any more
LEAST_GCC = 12  # __builtin_shufflevector, and _Float16 in C++
COMPILERS = ("g++", "g++-15", "g++-14", "g++-13", "g++-12", "c++")  # looked for in this order
INSTALL_HINT = (
    f"install GCC {LEAST_GCC} or newer, for example with `apt install g++` (on older systems "
    f"`apt install g++-{LEAST_GCC}`) or `conda install -c conda-forge gxx`, or name yours in the "
    "environment variable CXX"
)


class BuildError(MambaCpuError, RuntimeError):
    """The kernel cannot be compiled, or not be loaded on this machine; the message says why."""


@dataclass(frozen=True)
class Build:
    """A compiled kernel: what it is, and what it was made with."""

    library: Path
    level: str
    compiler: str
    flags: tuple[str, ...]

    def measured_on(self) -> dict[str, str]:
        """What belongs beside a time of this kernel: the CPU, the compiler and its flags."""
        return {"cpu": cpu_model(), "compiler": self.compiler, "flags": " ".join(self.flags)}


@cache
def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def cpu_features() -> frozenset[str]:
    """The features of this machine's CPU, in Linux's names; empty where there is no such list."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1].split() for line in lines if "flags" in line), []))


def best_level() -> str:
    """The fastest level this CPU can run."""
    return next(level for level, needs in LEVELS.items() if cpu_features().issuperset(needs))


def require_level(level: str) -> None:
    """Raise BuildError, naming the missing features, if this CPU cannot run `level`."""
    missing = [feature for feature in _features(level) if feature not in cpu_features()]
    if missing:
        raise BuildError(
            f"the scan kernel was built for {level}, but this CPU ({platform.node()}) lacks "
            f"{', '.join(missing)}: build it again on this machine"
        )


def find_compiler() -> list[str]:
    """The C++ compiler and its arguments: $CXX, else the first of COMPILERS that is new enough.

    Raises BuildError if there is none.
    """
    named = os.environ.get("CXX", "")
    try:
        command = shlex.split(named)
    except ValueError as error:
        raise BuildError(f"CXX={named} cannot be read as a command: {error}") from error
    if command and not shutil.which(command[0]):
        raise BuildError(f"CXX={named} names no program: correct it, or unset it to use g++")
    found = [command] if command else [[name] for name in COMPILERS if shutil.which(name)]
    if not found:
        raise BuildError(f"no C++ compiler was found to compile the scan kernel: {INSTALL_HINT}")
    for candidate in found:
        if gcc_version(candidate) >= LEAST_GCC:
            return candidate
    raise BuildError(
        f"`{shlex.join(found[0])}` ({compiler_version(found[0])}) cannot compile the scan kernel: "
        f"{INSTALL_HINT}"
    )


def gcc_version(compiler: list[str]) -> int:
    """The major version of a GCC, by its macros; 0 for any other compiler."""
    macros = _run([*compiler, "-dM", "-E", "-x", "c++", os.devnull])
    version = re.search(r"^#define __GNUC__ (\d+)$", macros, re.MULTILINE)
    return int(version[1]) if version and "__clang__" not in macros else 0


def compiler_version(compiler: list[str]) -> str:
    """The first line of what the compiler says about itself."""
    return _run([*compiler, "--version"]).partition("\n")[0]


def level_flags(level: str) -> tuple[str, ...]:
    """FLAGS and the instruction set."""
    wide = ("-mprefer-vector-width=512",) if level == "avx512" else ()
    return (*FLAGS, *(f"-m{feature}" for feature in _features(level)), *wide)


def build(folder: Path, level: str | None = None) -> Build:
    """Compile the kernel into `folder`, unless the same build is there already.

    level: one of LEVELS; by default the best one of this CPU. Raises BuildError.
    """
    import torch

    level = level or best_level()
    compiler = find_compiler()
    version = compiler_version(compiler)
    flags = level_flags(level)
    sources = sorted(SOURCES.glob("*.cpp"))
    parts = [torch.__version__, version, *compiler[1:], *flags]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[ch]*"))]
    library = folder / f"selective_scan-{level}-torch{torch.__version__}-{_digest(parts)}.so"
    if not _is_whole(library):
        _make_folder(folder)
        _compile(compiler, flags, level, sources, library)
    return Build(library, level, version, flags)


def build_ladder(folder: Path, level: str | None = None) -> Build:
    """Compile the steps that lead to the kernel, and the limits, as plain C functions."""
    level = level or best_level()
    compiler = find_compiler()
    version = compiler_version(compiler)
    flags = tuple(flag for flag in level_flags(level) if flag != "-fopenmp")
    sources = sorted((SOURCES / "ladder").glob("*.cpp"))
    parts = [version, *compiler[1:], *flags, (SOURCES / "vec.h").read_text(encoding="utf-8")]
    parts += [path.read_text(encoding="utf-8") for path in sorted((SOURCES / "ladder").iterdir())]
    library = folder / f"ladder-{level}-{_digest(parts)}.so"
    if not _is_whole(library):
        _make_folder(folder)
        compile_library(compiler, [*flags, *map(str, sources)], library)
    return Build(library, level, version, flags)


def load(build: Build) -> None:
    """Register the operator in this process, unless the same build is registered already.

    Raises BuildError if the CPU lacks a feature, or if another build of the level is registered.
    """
    import torch

    require_level(build.level)
    loaded = _loaded.get(build.level)
    if loaded is None:
        try:
            torch.ops.load_library(str(build.library))
        except OSError as error:
            raise BuildError(
                f"{build.library} cannot be loaded: {error}. If its folder is on a file system "
                "that forbids programs (mounted noexec), name another one."
            ) from error
        _loaded[build.level] = build.library
    elif loaded.name != build.library.name:
        raise BuildError(
            f"this process uses {loaded} already, and cannot load another build of its level, "
            f"{build.library}: start a new process for that one"
        )


def compile_library(compiler: list[str], arguments: list[str], library: Path) -> None:
    """Compile to a temporary name beside `library`, add the digest, rename. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
        partial = Path(folder) / library.name
        _run([*compiler, *arguments, "-shared", "-o", str(partial)])
        if not partial.exists():
            raise BuildError(f"`{shlex.join(compiler)}` wrote no library: is it a C++ compiler?")
        digest = hashlib.sha256(partial.read_bytes()).digest()
        with partial.open("ab") as file:
            file.write(digest)
        partial.rename(library)


def _compile(
    compiler: list[str], flags: tuple[str, ...], level: str, sources: list[Path], library: Path
) -> None:
    """Compile the sources side by side (torch's headers take most of the time), then link."""
    from torch.utils.cpp_extension import include_paths, library_paths

    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
        jobs, objects = [], []
        for source in sources:
            objects.append(str(Path(folder) / f"{source.stem}.o"))
            command = [*compiler, *flags, f"-DSCAN_NAMESPACE=selective_scan_{level}", "-c"]
            command += [f"-isystem{path}" for path in include_paths()]
            command += [str(source), "-o", objects[-1]]
            jobs.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        outputs = [job.communicate()[0] for job in jobs]
        for job, output in zip(jobs, outputs, strict=True):
            if job.returncode:
                raise BuildError(
                    f"the scan kernel does not compile with `{shlex.join(compiler)}`:\n{output}"
                )
        links = [f"-L{path}" for path in library_paths()]
        compile_library(compiler, [*objects, "-fopenmp", *links, "-ltorch_cpu", "-lc10"], library)


def _features(level: str) -> tuple[str, ...]:
    if level not in LEVELS:
        raise BuildError(f"there is no level {level!r}: choose one of {', '.join(LEVELS)}")
    return LEVELS[level]


def _make_folder(folder: Path) -> None:
    """Make the folder of the builds, without what a killed compilation left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".build-*"):
            if time.time() - left.stat().st_mtime > LONGEST_BUILD:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-"):
            pass  # it can be written to
    except OSError as error:
        raise BuildError(f"the scan kernel's folder {folder} cannot be written: {error}") from error


def _is_whole(library: Path) -> bool:
    """Whether a library is there as it was compiled: half of one ends the process in silence."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(content[:-size]).digest() == content[-size:]


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr or done.stdout or f"it ended with {done.returncode} and said nothing"
        raise BuildError(f"`{command[0]}` failed as a C++ compiler:\n{said}\n{INSTALL_HINT}")
    return done.stdout
