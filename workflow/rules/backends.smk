"""The comparison of eigensolvers on this machine.

In:  `backends:` in the configuration, and the γ of the checkpoint that it names, if it does.
Out: results/backends/ with eigh.csv (every measurement), stages.csv (whole jobs, by their parts),
     choice.json (what `backend: auto` takes from then on), a plot of each question, and pages.
"""


rule backends:
    """Which backend is fastest here, by how much, and what of a job it decides."""
    input:
        [BACKENDS / f"{table}.csv" for table in ("eigh", "stages")],
        CHOICE,
        [BACKENDS / f"{plot}.svg" for plot in ("eigh", "load", "stages")],


rule compare_backends:
    """Time every eigensolver, idle and busy, and the whole job of every backend."""
    input:
        gamma=compared_unembedding,
    output:
        eigh=BACKENDS / "eigh.csv",
        stages=BACKENDS / "stages.csv",
        choice=CHOICE,
        scratch=temp(directory(BACKENDS / "scratch")),
    log:
        "logs/backends/compare_backends.log",
    conda:
        BACKEND_ENV
    # Every core, so that nothing of this run is beside it; the solvers use `params.threads`.
    threads: workflow.resource_settings.cores or COMPARISON.threads
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=120,
        gpu=PLACEMENT.gpus,
    params:
        sizes=COMPARISON.sizes,
        precisions=COMPARISON.precisions,
        loads=COMPARISON.loads,
        repeats=COMPARISON.repeats,
        seconds=COMPARISON.seconds,
        threads=COMPARISON.threads,
        rows=inputs.compared_rows(CONFIG),
        code=code_digest("compare_backends.py"),
    script:
        "../scripts/compare_backends.py"


rule plot_backends:
    """Plot time by size, idle against busy, and the parts of a job; make pages of the tables."""
    input:
        eigh=BACKENDS / "eigh.csv",
        stages=BACKENDS / "stages.csv",
        choice=CHOICE,
    output:
        eigh=backends_result("eigh.svg", "eigh by size"),
        load=backends_result("load.svg", "eigh on a busy machine"),
        stages=backends_result("stages.svg", "Whole jobs"),
        eigh_page=backends_result("eigh.html", "Table of eigh"),
        stages_page=backends_result("stages.html", "Table of whole jobs"),
    log:
        "logs/backends/plot_backends.log",
    conda:
        "../../envs/plots.yaml"
    params:
        conclusions=lambda wildcards, input: inputs.conclusions(Path(input.choice)),
        code=code_digest("plot_backends.py"),
    script:
        "../scripts/plot_backends.py"
