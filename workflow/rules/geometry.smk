"""The geometry branch.

In:  checkpoints, local or on the Hub, as `models:` in the configuration names them.
Out: results/geometry/{model}/{revision}/ with γ, its decomposition, g, their description and
     profiles; results/geometry/summary.csv and plots over all revisions.
"""


# Seconds of work, and the first needs the network, which compute nodes may not have.
localrules:
    resolve_revisions,
    summarize_geometry,
    plot_geometry,


rule geometry:
    """Everything about the vocabulary's geometry."""
    input:
        "results/geometry/summary.csv",
        of_every_revision("results/geometry/{model}/{revision}/causal.safetensors"),
        (
            of_every_revision("results/geometry/{model}/{revision}/unembedding.safetensors")
            if CONFIG.keep_unembedding
            else []
        ),
        expand(
            "results/geometry/{model}/plots/{plot}.svg",
            model=CONFIG.models,
            plot=["spectrum", "effective_rank", "condition_number", "seconds"],
        ),


rule unembeddings:
    """Every γ, to fetch where there is internet before computing where there is none."""
    input:
        of_every_revision("results/geometry/{model}/{revision}/unembedding.safetensors"),


checkpoint resolve_revisions:
    """Turn names and patterns into commits, which from then on pin the run."""
    output:
        # Kept while the rule runs again: a revision that is pinned stays pinned.
        pinned=update("results/geometry/{model}/revisions.tsv"),
    log:
        "logs/geometry/{model}/resolve_revisions.log",
    conda:
        "../../envs/geometry.yaml"
    resources:
        downloads=1,
    params:
        path=lambda wildcards: model_params(wildcards).path,
        repo=lambda wildcards: model_params(wildcards).repo,
        revisions=lambda wildcards: model_params(wildcards).revisions,
        every=lambda wildcards: model_params(wildcards).every,
        present=revisions_present,
    script:
        "../scripts/resolve_revisions.py"


rule extract_unembedding:
    """Fetch the bytes of the unembedding matrix γ, and no others."""
    input:
        pinned=ancient(pinned_revisions),
        checkpoint=checkpoint_files,
    output:
        unembedding=UNEMBEDDING,
        profile=multiext(
            "results/geometry/{model}/{revision}/profiles/extract", ".prof", ".txt", ".svg"
        ),
        facts="results/geometry/{model}/{revision}/profiles/extract.json",
    log:
        "logs/geometry/{model}/{revision}/extract.log",
    group:
        FETCH_GROUP
    conda:
        "../../envs/geometry.yaml"
    resources:
        downloads=1,
        mem_mb=lambda wildcards, attempt: FETCH_MB * attempt,
        runtime=lambda wildcards, attempt: FETCH_MINUTES * attempt,
    params:
        path=lambda wildcards: model_params(wildcards).path,
        repo=lambda wildcards: model_params(wildcards).repo,
        files=checkpoint_state,
        commit=commit,
        tensor=lambda wildcards: model_params(wildcards).unembedding,
        download=CONFIG.download,
        code=code_digest("extract_unembedding.py"),
    script:
        "../scripts/extract_unembedding.py"


rule decompose_covariance:
    """Eigendecompose the covariance of one unembedding matrix."""
    input:
        unembedding="results/geometry/{model}/{revision}/unembedding.safetensors",
    output:
        decomposition="results/geometry/{model}/{revision}/decomposition.safetensors",
        profile=multiext(
            "results/geometry/{model}/{revision}/profiles/decompose", ".prof", ".txt", ".svg"
        ),
        facts="results/geometry/{model}/{revision}/profiles/decompose.json",
    log:
        "logs/geometry/{model}/{revision}/decompose.log",
    group:
        "revision"
    conda:
        BACKEND_ENV
    threads: 4
    resources:
        mem_mb=memory,
        runtime=minutes,
        gpu=GPUS,
    params:
        backend=CONFIG.backend,
        choice=CHOICE,  # its place, not its content: a new comparison reruns nothing
        precision=CONFIG.precision,
        rows=lambda wildcards: model_params(wildcards).rows,
        code=code_digest("decompose_covariance.py"),
    script:
        "../scripts/decompose_covariance.py"


rule transform_unembedding:
    """Write g = (γ − μ) C^(−1/2), measure its whitening residual and describe the checkpoint."""
    input:
        unembedding="results/geometry/{model}/{revision}/unembedding.safetensors",
        decomposition="results/geometry/{model}/{revision}/decomposition.safetensors",
        extract="results/geometry/{model}/{revision}/profiles/extract.json",
        decompose="results/geometry/{model}/{revision}/profiles/decompose.json",
    output:
        causal="results/geometry/{model}/{revision}/causal.safetensors",
        geometry="results/geometry/{model}/{revision}/geometry.json",
        profile=multiext(
            "results/geometry/{model}/{revision}/profiles/transform", ".prof", ".txt", ".svg"
        ),
    log:
        "logs/geometry/{model}/{revision}/transform.log",
    group:
        "revision"
    conda:
        BACKEND_ENV
    threads: 4
    resources:
        mem_mb=memory,
        runtime=minutes,
        gpu=GPUS,
    params:
        backend=CONFIG.backend,
        choice=CHOICE,
        on_rank_deficient=CONFIG.on_rank_deficient,
        asked=asked,
        code=code_digest("transform_unembedding.py"),
    script:
        "../scripts/transform_unembedding.py"


rule summarize_geometry:
    """Gather one row per model and revision."""
    input:
        geometry=described,
        # Compared with what is described, and not read.
        causal=of_every_revision("results/geometry/{model}/{revision}/causal.safetensors"),
    output:
        report(
            "results/geometry/summary.csv",
            caption="../report/summary.rst",
            category="Geometry",
            labels={"result": "summary of all checkpoints"},
        ),
    log:
        "logs/geometry/summarize_geometry.log",
    conda:
        "../../envs/plots.yaml"
    params:
        code=code_digest("summarize_geometry.py"),
    script:
        "../scripts/summarize_geometry.py"


rule plot_geometry:
    """Plot one model's geometry over its training."""
    input:
        geometry=described,
        decomposition=of_every_revision(
            "results/geometry/{model}/{revision}/decomposition.safetensors"
        ),
    output:
        spectrum=geometry_plot("spectrum"),
        effective_rank=geometry_plot("effective_rank"),
        condition_number=geometry_plot("condition_number"),
        seconds=geometry_plot("seconds"),
    log:
        "logs/geometry/{model}/plot_geometry.log",
    conda:
        "../../envs/plots.yaml"
    params:
        code=code_digest("plot_geometry.py"),
    script:
        "../scripts/plot_geometry.py"
