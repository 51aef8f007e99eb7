"""The concepts branch: WordNet's categories as directions of g, over training.

In:  `concepts:` in the configuration, each model's tokenizer.json, and g of every revision.
Out: results/geometry/{model}/tokens.tsv           the text of each row of γ and g
     results/concepts/{model}/                     categories.safetensors, synsets.csv; plots/
     results/concepts/{model}/{revision}/          directions.safetensors, matrices.safetensors,
                                                   scores.csv
     results/concepts/summary.csv, explorer.html   all models: a row per revision; a page to look at
"""


rule concepts:
    """Everything about the vocabulary's concepts."""
    input:
        CONCEPTS.summary,
        CONCEPTS.summary_page,
        CONCEPTS.explorer,
        # All that is kept, so that what is deleted is made again.
        expand(
            [
                MODEL.vocabulary,
                CONCEPT.model.categories,
                CONCEPT.model.synsets,
                CONCEPT.model.agreement,
            ],
            model=CONFIG.models,
        ),
        of_every_revision(CONCEPT.scores, CONCEPT.directions, CONCEPT.matrices),
        of_shown(CONCEPT.tokens),
        expand(str(CONCEPT.model.plot("{plot}")), model=CONFIG.models, plot=CONCEPT_PLOTS),


rule list_tokens:
    """Write the text of each row of γ, from the model's tokenizer."""
    input:
        pinned=ancient(pinned_revisions),
        tokenizer=tokenizer_files,
    output:
        MODEL.vocabulary,
    log:
        "logs/concepts/{model}/list_tokens.log",
    localrule: True
    conda:
        "../../envs/geometry.yaml"
    resources:
        downloads=1,
    params:
        source=tokenizer_of,
        state=lambda wildcards: state_of(map(Path, tokenizer_files(wildcards))),
        code=code_digest("list_tokens.py"),
    script:
        "../scripts/list_tokens.py"


rule categorize_tokens:
    """Find the synsets that enough tokens belong to, and split their members."""
    input:
        tokens=MODEL.vocabulary,
        wordnet=wordnet_files,
    output:
        categories=CONCEPT.model.categories,
        synsets=CONCEPT.model.synsets,
    log:
        "logs/concepts/{model}/categorize_tokens.log",
    localrule: True
    conda:
        "../../envs/geometry.yaml"
    params:
        wordnet=str(WORDNET),
        settings=lambda wildcards: settings_of(wildcards.model),
        code=code_digest("categorize_tokens.py"),
    script:
        "../scripts/categorize_tokens.py"


rule measure_concepts:
    """Find the direction of every synset in one g, and score it beside shuffled labels."""
    input:
        causal=CAUSAL,
        categories=CONCEPT.model.categories,
        synsets=CONCEPT.model.synsets,
    output:
        directions=CONCEPT.directions,
        matrices=CONCEPT.matrices,
        scores=CONCEPT.scores,
    log:
        "logs/concepts/{model}/{revision}/measure_concepts.log",
    conda:
        BACKEND_ENV
    threads: 4
    resources:
        mem_mb=lambda wildcards, attempt: sizing.concepts_mb(width(wildcards)) * attempt,
        runtime=minutes,
        gpu=PLACEMENT.gpus,
    params:
        backend=CONFIG.backend,
        choice=CHOICE,
        code=code_digest("measure_concepts.py"),
    script:
        "../scripts/measure_concepts.py"


rule describe_tokens:
    """Project tokens on concepts, and find the neighbours of words, at one checkpoint."""
    input:
        causal=CAUSAL,
        vocabulary=MODEL.vocabulary,
        categories=CONCEPT.model.categories,
        synsets=CONCEPT.model.synsets,
        directions=CONCEPT.directions,
    output:
        CONCEPT.tokens,
    log:
        "logs/concepts/{model}/{revision}/describe_tokens.log",
    conda:
        "../../envs/geometry.yaml"
    threads: 4
    resources:
        mem_mb=lambda wildcards, attempt: sizing.tokens_mb(width(wildcards), "g" in WRITTEN)
        * attempt,
        runtime=minutes,
    params:
        code=code_digest("describe_tokens.py"),
    script:
        "../scripts/describe_tokens.py"


rule compare_checkpoints:
    """Compare checkpoints with the last one: leading eigenspaces, and products of tokens."""
    input:
        geometry=described,  # of all: each stage that begins removes what is written here
        causal=of_shown(*CAUSAL),
        decomposition=of_shown(REVISION.decomposition),
    output:
        CONCEPT.model.agreement,
    log:
        "logs/concepts/{model}/compare_checkpoints.log",
    conda:
        "../../envs/geometry.yaml"
    threads: 4
    resources:
        mem_mb=memory,
        runtime=minutes,
    params:
        code=code_digest("compare_checkpoints.py"),
    script:
        "../scripts/compare_checkpoints.py"


rule summarize_concepts:
    """Gather one row per model, revision and part of speech."""
    input:
        geometry=described,
        scores=of_every_revision(CONCEPT.scores),
        directions=of_every_revision(CONCEPT.directions),
        categories=categorized,
        synsets=expand(str(CONCEPT.model.synsets), model=CONFIG.models),
    output:
        table=CONCEPTS.summary,
        page=in_report(
            CONCEPTS.summary_page, "Concepts", "concepts_summary", "Scores of all checkpoints"
        ),
    log:
        "logs/concepts/summarize_concepts.log",
    localrule: True
    conda:
        "../../envs/plots.yaml"
    params:
        checkpoints=every_asked,
        settings=lambda wildcards: {model: settings_of(model) for model in CONFIG.models},
        code=code_digest("summarize_concepts.py"),
    script:
        "../scripts/summarize_concepts.py"


rule plot_concepts:
    """Plot one model's concepts: over training, and at its last checkpoint."""
    input:
        geometry=described,
        scores=of_every_revision(CONCEPT.scores),
        directions=of_every_revision(CONCEPT.directions),
        agreement=CONCEPT.model.agreement,
        categories=CONCEPT.model.categories,
        synsets=CONCEPT.model.synsets,
        causal=of_last(*CAUSAL),
        matrices=of_last(CONCEPT.matrices),
    output:
        **{
            plot: in_report(CONCEPT.model.plot(plot), "Concepts", f"concepts_{plot}", title)
            for plot, title in CONCEPT_PLOTS.items()
        },
    log:
        "logs/concepts/{model}/plot_concepts.log",
    localrule: True
    conda:
        "../../envs/plots.yaml"
    params:
        checkpoints=every_asked,
        settings=lambda wildcards: {wildcards.model: settings_of(wildcards.model)},
        code=code_digest("plot_concepts.py"),
    script:
        "../scripts/plot_concepts.py"


rule write_explorer:
    """Write one page on which concepts and tokens of all models can be looked at."""
    input:
        geometry=described,
        scores=of_every_revision(CONCEPT.scores),
        directions=of_every_revision(CONCEPT.directions),
        tokens=of_shown(CONCEPT.tokens),
        vocabulary=expand(str(MODEL.vocabulary), model=CONFIG.models),
        categories=expand(str(CONCEPT.model.categories), model=CONFIG.models),
        synsets=expand(str(CONCEPT.model.synsets), model=CONFIG.models),
    output:
        in_report(CONCEPTS.explorer, "Concepts", "concepts_explorer", "Explorer"),
    log:
        "logs/concepts/write_explorer.log",
    localrule: True
    conda:
        "../../envs/plots.yaml"
    params:
        checkpoints=every_asked,
        settings=lambda wildcards: {model: settings_of(model) for model in CONFIG.models},
        code=code_digest("write_explorer.py", "src/unembedding/concepts/explorer.html"),
    script:
        "../scripts/write_explorer.py"
