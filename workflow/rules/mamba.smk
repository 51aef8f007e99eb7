"""The mamba branch: the fused selective scan, measured, and a whole model with it.

In:  `mamba:` in the configuration, and the sequence file and model that it names, if any.
Out: results/mamba/build/kernel.json  the compiled kernel: library, compiler, flags
     results/mamba/scan.csv, .html    one row per variant and length, and as a page
     results/mamba/scan.svg           the log-log plot
     results/mamba/profile/           before.txt, after.txt, comparison.txt, .html, model.json
"""


rule mamba:
    """Everything of this branch."""
    input:
        "results/mamba/scan.csv",
        "results/mamba/profile/model.json",


rule build_selective_scan:
    """Compile the kernel for the CPU this job runs on."""
    output:
        record="results/mamba/build/kernel.json",
    log:
        "logs/mamba/build_selective_scan.log",
    conda:
        "../../envs/mamba.yaml"
    threads: 2
    resources:
        mem_mb=3000,
    params:
        measured=lambda wildcards: [
            str(path) for path in (*rules.benchmark_scan.output, *rules.profile_mamba_model.output)
        ],
        code=code_digest("build_selective_scan.py", "packages/mamba-cpu/src/mamba_cpu/csrc"),
    script:
        "../scripts/build_selective_scan.py"


rule benchmark_scan:
    """Time the ladder, its competitors and the limits at every length."""
    input:
        record="results/mamba/build/kernel.json",
    output:
        table="results/mamba/scan.csv",
        page=in_report("results/mamba/scan.html", "Mamba", "scan_table", "Table of all scans"),
        figure=in_report("results/mamba/scan.svg", "Mamba", "scan_figure", "Scans by length"),
    log:
        "logs/mamba/benchmark_scan.log",
    conda:
        "../../envs/mamba.yaml"
    threads: CONFIG.mamba.threads
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        scan=CONFIG.mamba.scan.model_dump(),
        threads=CONFIG.mamba.threads,  # more than `--cores` are not cut down to them in silence
        code=code_digest("benchmark_scan.py"),
    script:
        "../scripts/benchmark_scan.py"


rule profile_mamba_model:
    """Profile a whole model before and after."""
    input:
        record="results/mamba/build/kernel.json",
        sequence=CONFIG.mamba.sequence.path or [],
    output:
        before="results/mamba/profile/before.txt",
        after="results/mamba/profile/after.txt",
        comparison="results/mamba/profile/comparison.txt",
        page=in_report(
            "results/mamba/profile/comparison.html", "Mamba", "mamba_model", "A whole model"
        ),
        summary="results/mamba/profile/model.json",
    log:
        "logs/mamba/profile_mamba_model.log",
    conda:
        "../../envs/mamba.yaml"
    threads: CONFIG.mamba.threads
    resources:
        mem_mb=lambda wildcards, attempt: attempt
        * sizing.mamba_mb(CONFIG.mamba.model.model_dump(), CONFIG.mamba.sequence.length),
        runtime=60,
    params:
        model=CONFIG.mamba.model.model_dump(),
        threads=CONFIG.mamba.threads,
        sequence=CONFIG.mamba.sequence.model_dump(),
        code=code_digest("profile_mamba_model.py"),
    script:
        "../scripts/profile_mamba_model.py"
