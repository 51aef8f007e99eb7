"""Builds: keyed, loadable side by side, and clear about what is missing."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from mamba_cpu import BuildError, build, load_kernel, ops, selective_scan_fn
from mamba_cpu.bench.variants import all_variants, make_inputs
from mamba_cpu.reference import selective_scan_reference

PACKAGE = build.SOURCES.parents[1]


@pytest.fixture
def inputs():
    return make_inputs(batch=1, dim=64, length=40, state=16)


@pytest.mark.parametrize("level", [level for level in build.LEVELS if level != build.best_level()])
def test_every_instruction_set_gives_the_same_results(level, scan_builds, inputs):
    if not build.cpu_features().issuperset(build.LEVELS[level]):
        pytest.skip(f"this CPU has no {level}")
    results = {}
    for name in (level, build.best_level()):
        load_kernel(scan_builds, name)
        results[name] = selective_scan_fn(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
    torch.testing.assert_close(*results.values(), rtol=1e-5, atol=1e-5)


def test_a_library_is_compiled_once(scan_builds):
    first = load_kernel(scan_builds)
    before = first.library.stat().st_mtime_ns
    assert load_kernel(scan_builds) == first
    assert first.library.stat().st_mtime_ns == before
    assert build.best_level() in first.library.name and torch.__version__ in first.library.name


def test_the_same_library_in_another_folder_is_not_loaded_twice(kernel, tmp_path):
    shutil.copy2(kernel.library, tmp_path)
    load = "import sys, mamba_cpu as s; [print(s.load_kernel(f).level) for f in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", load, kernel.library.parent, tmp_path],
        env={"PYTHONPATH": str(PACKAGE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [kernel.level] * 2, done.stderr


def cut_in_half(library):
    with library.open("r+b") as file:
        file.truncate(library.stat().st_size // 2)


def with_one_bit_changed(library):
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_in_half, with_one_bit_changed])
def test_a_damaged_library_is_compiled_again(tmp_path, damage):
    library = build.build_ladder(tmp_path).library
    whole = library.read_bytes()
    damage(library)
    assert build.build_ladder(tmp_path).library.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == [library.name]


def test_a_library_that_the_system_does_not_load_is_named(monkeypatch, kernel, tmp_path):
    monkeypatch.setattr(build, "_loaded", {})
    (tmp_path / "kernel.so").touch()
    with pytest.raises(BuildError, match=r"kernel\.so cannot be loaded: .*mounted noexec"):
        build.load(replace(kernel, library=tmp_path / "kernel.so"))


def test_another_build_of_the_level_needs_a_new_process(kernel):
    other = replace(kernel, library=kernel.library.with_name("other.so"))
    with pytest.raises(BuildError, match="start a new process"):
        build.load(other)


def test_a_level_that_does_not_exist_is_told_the_others(tmp_path):
    with pytest.raises(BuildError, match="no level 'avx1024': choose one of avx512, avx2, port"):
        load_kernel(tmp_path, "avx1024")


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"folder .*file cannot be written"):
        load_kernel(tmp_path / "file")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("no-such-compiler -O1", "names no program"),
        ("g++ 'quote", "cannot be read"),
        ("true", "`true` (.*) cannot compile the scan kernel: install GCC 12 or newer"),
    ],
)
def test_a_cxx_that_is_no_compiler_is_an_error(monkeypatch, tmp_path, named, message):
    monkeypatch.setenv("CXX", named)
    with pytest.raises(BuildError, match=message):
        load_kernel(tmp_path)


def test_the_arguments_in_cxx_are_the_compilers(monkeypatch):
    monkeypatch.setenv("CXX", "g++ -g '-DNAME=a b'")
    assert build.find_compiler() == ["g++", "-g", "-DNAME=a b"]


def test_a_cpu_without_the_features_is_told_which(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset({"avx2", "fma"}))
    with pytest.raises(BuildError, match="lacks f16c"):
        load_kernel(tmp_path, "avx2")
    assert build.best_level() == "portable"


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="apt install g"):
        load_kernel(tmp_path)


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    compiler = tmp_path / "broken"
    compiler.write_text(
        '#!/bin/sh\ncase "$1" in --version) ;; -dM) echo "#define __GNUC__ 12";;'
        " *) echo no luck; exit 1;; esac\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="no luck"):
        load_kernel(tmp_path)
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.parametrize("macros", ["__GNUC__ 11", "__GNUC__ 14\n#define __clang__ 1"])
def test_a_compiler_that_is_too_old_or_another_is_told_from_gcc(monkeypatch, tmp_path, macros):
    old = tmp_path / "old"
    old.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo Old 1.1 || echo '#define {macros}'\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(BuildError, match=r"\(Old 1\.1\) cannot compile .* install GCC 12"):
        build.find_compiler()


def test_a_newer_compiler_is_taken_where_the_usual_one_is_too_old(monkeypatch, tmp_path):
    for name, version in (("g++", 11), ("g++-13", 13)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '#define __GNUC__ {version}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.find_compiler() == ["g++-13"]


def test_the_first_call_compiles_the_kernel_into_the_cache_folder(monkeypatch, scan_builds, inputs):
    monkeypatch.setattr(ops.loading, "_kernel", None)
    monkeypatch.setenv("MAMBA_CPU_CACHE", str(scan_builds))
    selective_scan_fn(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
    assert list(scan_builds.glob(f"selective_scan-{build.best_level()}-*.so"))


def test_the_first_call_without_a_compiler_says_what_to_install(monkeypatch, tmp_path, inputs):
    monkeypatch.setattr(ops.loading, "_kernel", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="apt install g"):
        selective_scan_fn(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MAMBA_CPU_CACHE": "/fast/kernels", "XDG_CACHE_HOME": "/cache"}, "/fast/kernels"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/mamba-cpu"),
        ({"HOME": "/home/me"}, "/home/me/.cache/mamba-cpu"),
    ],
)
def test_the_cache_folder_is_where_people_look_for_it(monkeypatch, variables, expected):
    for name in ("MAMBA_CPU_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(ops.cache_folder()) == expected


def test_every_step_of_the_ladder_agrees_with_the_recurrence(kernel, scan_builds, inputs):
    expected, _ = selective_scan_reference(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
    for variant in all_variants(scan_builds):
        if variant.exact and variant.name not in ("torch.compile", "associative_scan"):
            y = variant.run(inputs)
            assert (y - expected).abs().max() / expected.abs().max() < 1e-5, variant.name
