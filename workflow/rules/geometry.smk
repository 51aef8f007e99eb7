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
        GEOMETRY.summary,
        GEOMETRY.summary_page,
        # All that is kept, so that what is deleted is made again.
        of_every_revision(*WRITTEN.values()),
        of_every_revision(REVISION.geometry),
        of_every_revision(REVISION.decomposition),
        of_every_revision(REVISION.facts("extract")),
        of_every_revision(REVISION.facts("decompose")),
        of_every_revision(REVISION.unembedding) if CONFIG.keep_unembedding else [],
        expand(str(MODEL.plot("{plot}")), model=CONFIG.models, plot=PLOTS),


rule unembeddings:
    """Every γ, to fetch where there is internet before computing where there is none."""
    input:
        of_every_revision(REVISION.unembedding),


checkpoint resolve_revisions:
    """Turn names and patterns into commits, which from then on pin the run."""
    output:
        # Kept while the rule runs again: a revision that is pinned stays pinned.
        pinned=update(MODEL.pinned),
    log:
        "logs/geometry/{model}/resolve_revisions.log",
    priority: 1
    conda:
        "../../envs/geometry.yaml"
    resources:
        downloads=1,
    params:
        request=lambda wildcards: inputs.request_of(model_of(wildcards)),
        failures=lambda wildcards: failures(wildcards.model),
    script:
        "../scripts/resolve_revisions.py"


rule extract_unembedding:
    """Fetch the bytes of the unembedding matrix γ, and no others."""
    input:
        pinned=ancient(pinned_revisions),
        checkpoint=checkpoint_files,
    output:
        unembedding=UNEMBEDDING,
        profile=REVISION.profile("extract"),
        facts=REVISION.facts("extract"),
    log:
        "logs/geometry/{model}/{revision}/extract.log",
    priority: 1
    # One submission does all of a revision, but a GPU does not wait for a download.
    group:
        "download" if PLACEMENT.gpus else "revision"
    conda:
        "../../envs/geometry.yaml"
    resources:
        downloads=1,
        mem_mb=lambda wildcards, attempt: sizing.FETCH_MB * attempt,
        runtime=lambda wildcards, attempt: sizing.FETCH_MINUTES * attempt,
    params:
        path=lambda wildcards: inputs.folder_of(model_of(wildcards)),
        asked=asked_of("extract"),
        download=CONFIG.download,
        code=code_digest("extract_unembedding.py"),
    script:
        "../scripts/extract_unembedding.py"


rule decompose_covariance:
    """Eigendecompose the covariance of one unembedding matrix."""
    input:
        unembedding=REVISION.unembedding,
    output:
        decomposition=REVISION.decomposition,
        profile=REVISION.profile("decompose"),
        facts=REVISION.facts("decompose"),
    log:
        "logs/geometry/{model}/{revision}/decompose.log",
    priority: 1
    group:
        "revision"
    conda:
        BACKEND_ENV
    threads: 4
    resources:
        mem_mb=memory,
        runtime=minutes,
        gpu=PLACEMENT.gpus,
    params:
        backend=CONFIG.backend,
        choice=CHOICE,  # its place, not its content: a new comparison reruns nothing
        asked=asked_of("decompose"),
        code=code_digest("decompose_covariance.py"),
    script:
        "../scripts/decompose_covariance.py"


rule transform_unembedding:
    """Form g = (γ − μ) C^(−1/2), measure its whitening residual and describe the checkpoint."""
    input:
        unembedding=REVISION.unembedding,
        decomposition=REVISION.decomposition,
        extract=REVISION.facts("extract"),
        decompose=REVISION.facts("decompose"),
        pinned=ancient(pinned_revisions),
    output:
        **WRITTEN,
        geometry=REVISION.geometry,
        profile=REVISION.profile("transform"),
    log:
        "logs/geometry/{model}/{revision}/transform.log",
    priority: 1
    group:
        "revision"
    conda:
        BACKEND_ENV
    threads: 4
    resources:
        mem_mb=memory,
        runtime=minutes,
        gpu=PLACEMENT.gpus,
    params:
        backend=CONFIG.backend,
        choice=CHOICE,
        asked=asked_of("transform"),
        checkpoint=lambda wildcards: vars(asked(wildcards.model, wildcards.revision)),
        code=code_digest("transform_unembedding.py"),
    script:
        "../scripts/transform_unembedding.py"


rule summarize_geometry:
    """Gather one row per model and revision."""
    input:
        geometry=described,
        # Compared with what is described, and not read.
        causal=of_every_revision(*WRITTEN.values()),
    output:
        table=GEOMETRY.summary,
        page=in_report(GEOMETRY.summary_page, "Geometry", "summary", "All checkpoints"),
    log:
        "logs/geometry/summarize_geometry.log",
    priority: 1
    conda:
        "../../envs/plots.yaml"
    params:
        checkpoints=every_asked,
        models=list(CONFIG.models),
        code=code_digest("summarize_geometry.py"),
    script:
        "../scripts/summarize_geometry.py"


rule plot_geometry:
    """Plot one model's geometry over its training."""
    input:
        geometry=described,
        decomposition=of_every_revision(REVISION.decomposition),
    output:
        **{p: in_report(MODEL.plot(p), "Geometry", p, PLOTS[p]) for p in PLOTS},
    log:
        "logs/geometry/{model}/plot_geometry.log",
    priority: 1
    conda:
        "../../envs/plots.yaml"
    params:
        checkpoints=every_asked,
        code=code_digest("plot_geometry.py"),
    script:
        "../scripts/plot_geometry.py"
