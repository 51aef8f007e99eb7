# The mamba branch: compile the fused selective scan, time it against everything else a person would
# run on a CPU, and profile a whole model with it.
#
# In:  config["mamba"], and the sequence file it names, if any.
# Out: results/mamba/build/kernel.json  the compiled kernel: library, compiler, flags
#      results/mamba/scan.csv, scan.svg  one row per variant and length; the log-log plot
#      results/mamba/profile/            before.txt, after.txt, model.json

def package(*names):
    """Modules of the package that a rule's result depends on; a changed one reruns it."""
    return [f"workflow/scripts/selective_scan/{name}" for name in names]


rule build_selective_scan:
    """Compile the kernel for the CPU this job runs on."""
    input:
        package("build.py"),
        expand(
            "workflow/scripts/selective_scan/csrc/{name}",
            name=[
                "kernel.cpp", "conv.cpp", "operator.cpp", "block.h", "scan.h", "tile.h", "vec.h",
                "ladder/fused.cpp", "ladder/reordered.cpp", "ladder/unrolled.cpp",
                "ladder/vectorized.cpp", "ladder/limits.cpp", "ladder/ladder.h",
            ],
        ),
    output:
        record="results/mamba/build/kernel.json",
    log:
        "logs/mamba/build_selective_scan.log",
    threads: 2
    resources:
        mem_mb=3000,
        runtime=10,
    conda:
        "../../envs/mamba.yaml"
    script:
        "../scripts/build_selective_scan.py"


rule benchmark_scan:
    """Time the ladder, its competitors and the limits at every length."""
    input:
        package("benchmark.py", "variants.py", "interface.py", "reference.py", "plot.py"),
        record=rules.build_selective_scan.output.record,
    output:
        table=report("results/mamba/scan.csv", caption="../report/scan_table.rst", category="Mamba"),
        figure=report("results/mamba/scan.svg", caption="../report/scan_figure.rst", category="Mamba"),
    log:
        "logs/mamba/benchmark_scan.log",
    params:
        scan=config["mamba"]["scan"],
    threads: config["mamba"]["threads"]
    resources:
        mem_mb=8000,
        runtime=60,
    conda:
        "../../envs/mamba.yaml"
    script:
        "../scripts/benchmark_scan.py"


rule profile_mamba_model:
    """Profile a whole model before and after."""
    input:
        package("model.py", "patch.py", "interface.py"),
        record=rules.build_selective_scan.output.record,
        sequence=config["mamba"]["sequence"]["path"] or [],
    output:
        before="results/mamba/profile/before.txt",
        after="results/mamba/profile/after.txt",
        summary=report(
            "results/mamba/profile/model.json", caption="../report/mamba_model.rst", category="Mamba"
        ),
    log:
        "logs/mamba/profile_mamba_model.log",
    params:
        model=config["mamba"]["model"],
        sequence=config["mamba"]["sequence"],
    threads: config["mamba"]["threads"]
    resources:
        mem_mb=8000,
        runtime=60,
    conda:
        "../../envs/mamba.yaml"
    script:
        "../scripts/profile_mamba_model.py"


rule mamba:
    """Everything of this branch."""
    input:
        rules.benchmark_scan.output,
        rules.profile_mamba_model.output,
    localrule: True
