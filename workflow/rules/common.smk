"""Wiring: the configuration, and the functions of src/unembedding/workflow bound to it."""

import sys
import time
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

# Scripts are given this path too; PYTHONPATH does not reach those in an environment of conda.
HOME = Path(workflow.current_basedir).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "packages/mamba-cpu/src")]

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from unembedding.checkpoints.revisions import folder_name
from unembedding.checkpoints.sources import state_of
from unembedding.errors import UserError
from unembedding.records.manifest import write_manifest
from unembedding.records.pins import read_pins, read_resolution
from unembedding.results import (
    BACKENDS,
    CHOICE,
    CONCEPT_PLOTS,
    CONCEPTS,
    GEOMETRY,
    MODEL,
    PLOTS,
    REVISION,
    ModelResults,
)
from unembedding.workflow import configuration, inputs, preflight, sizing, terminal
from unembedding.workflow.provenance import code_digest, share_with_jobs
from unembedding.workflow.salvage import salvage

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")  # not every locale has a γ
STARTED = time.time()
PINS = {}  # of each model, as they were read last
CHECKED = {}  # when what pins a model had been written, at the last look whether it answers
share_with_jobs()
try:
    CONFIG = configuration.load(config, workflow.configfiles, workflow.is_main_process)
except UserError as error:
    raise WorkflowError(str(error)) from None

PLACEMENT = sizing.placement(CONFIG.backend)
BACKEND_ENV = f"../../envs/{PLACEMENT.environment}.yaml"
UNEMBEDDING = REVISION.unembedding if CONFIG.keep_unembedding else temp(REVISION.unembedding)
COMPARISON = CONFIG.backends
# What is written of g, and what it is read from: where it is not written, γ is multiplied again.
FILES_OF_G = {"g": REVISION.causal, "factors": REVISION.factors}
WRITTEN = {name: FILES_OF_G[name] for name in CONFIG.write}
CAUSAL = [REVISION.causal] if "g" in WRITTEN else [REVISION.factors, REVISION.unembedding]
CONCEPT = REVISION.concepts
WORDNET = CONFIG.concepts.wordnet or HOME / "resources/wordnet"
logger.addFilter(lambda record: not terminal.is_noise(str(record.msg)))


wildcard_constraints:
    model="[^/]+",
    revision="[^/]+",


def plainly(function):
    """Have a mistake that a function of the rules finds told without a traceback."""

    @wraps(function)
    def told(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except UserError as error:
            sys.exit(str(error))  # Snakemake adds a traceback to any exception

    return told


@plainly
def model_of(wildcards):
    """Return what the configuration says of a model."""
    return inputs.model_of(CONFIG, wildcards.model)


def pinned_revisions(wildcards):
    """Return the file that pins a model's revisions, once it holds what is asked for now."""
    return checkpoints.resolve_revisions.get(model=wildcards.model).output.pinned


def results_of(model):
    """Return where a model's results are: another workflow may have prefixed the rules' paths."""
    pinned = str(rules.resolve_revisions.output.pinned).format(model=model)
    return ModelResults(Path(pinned).parent)


@plainly
def pins(model, resolved=False):
    """Return {revision: commit} of a model, be it for an earlier request unless ``resolved``.

    Parameters take the latter: Snakemake cannot tell what they were from ``checkpoints`` or
    ``input``. From a storage the file is here for a while only, so it is remembered.
    """
    path = results_of(model).pinned
    written = path.stat().st_mtime_ns if path.exists() else None
    if CHECKED.get(model) != written:
        inputs.require_resolved(path, inputs.request_of(inputs.model_of(CONFIG, model)), recorded)
        CHECKED[model] = written
    if resolved:
        pinned = checkpoints.resolve_revisions.get(model=model).output.pinned
        with pinned.open():  # or Snakemake fetches it from the storage, and asks again
            path = Path(pinned)
    if path.exists():
        PINS[model] = read_pins(path)
    return PINS.get(model, {})


def failures(model):
    """Return how many attempts to resolve a model failed, so that another one is made."""
    return read_resolution(results_of(model).pinned).failures


@plainly
def asked(model, revision):
    """Return what the configuration asks of a checkpoint, by the name of its folder."""
    name = unquote(revision)
    return inputs.asked(CONFIG, model, name, pins(model).get(name))


def asked_of(stage):
    """Return a function of params: what is asked of one stage."""
    return lambda wildcards: asked(wildcards.model, wildcards.revision).of(stage)


def of_revisions(found, patterns):
    """Return an input function: the files of each revision that ``found`` finds of wildcards."""
    return lambda wildcards: [
        str(pattern).format(model=model, revision=revision)
        for model, revision in found(wildcards)
        for pattern in patterns
    ]


def of_every_revision(*patterns):
    """Return an input function: the files of each revision of the model, or of every model."""
    return of_revisions(every_revision, patterns)


@plainly
def checkpoint_files(wildcards):
    """Return the files of a local checkpoint, which are no results: no storage or prefix has them."""
    files = inputs.checkpoint_files(model_of(wildcards), unquote(wildcards.revision))
    return [local(str(file)) for file in files]


@plainly
def every_revision(wildcards, resolved=True):
    """Return (model, folder of the revision) of what is asked for, once it is resolved."""
    models = [wildcards.model] if hasattr(wildcards, "model") else sorted(CONFIG.models)
    return [
        (model, folder_name(revision)) for model in models for revision in pins(model, resolved)
    ]


def shown_revisions(wildcards, resolved=True):
    """Return (model, folder of the revision) of the checkpoints whose tokens are explored."""
    found = every_revision(wildcards, resolved)
    of = {model: [unquote(name) for m, name in found if m == model] for model, _ in found}
    picked = {m: inputs.shown(CONFIG.models[m], names) for m, names in of.items()}
    return [(model, folder_name(name)) for model, names in picked.items() for name in names]


def of_shown(*patterns):
    """Return an input function: the files of each checkpoint whose tokens are explored."""
    return of_revisions(shown_revisions, patterns)


def of_last(*patterns):
    """Return an input function: the files of a model's last checkpoint."""
    return lambda wildcards: of_shown(*patterns)(wildcards)[-len(patterns) :]


@plainly
def tokenizer_of(wildcards):
    """Return where a model's tokenizer is, of what the configuration says."""
    model = model_of(wildcards)
    known = {"tokenizer": model.tokenizer, "path": model.path, "repo": model.repo}
    named = {key: str(value) if value else None for key, value in known.items()}
    first = next(iter(pins(wildcards.model).items()), None)
    return {**named, "subfolder": model.subfolder, "pin": first}


@plainly
def tokenizer_files(wildcards):
    """Return the local files that a model's tokens are read from."""
    return [local(str(file)) for file in inputs.tokenizer_files(model_of(wildcards))]


def wordnet_files(wildcards):
    """Return WordNet's database files, as far as they are there."""
    return [local(str(file)) for file in inputs.wordnet_files(WORDNET, CONFIG.concepts.pos)]


@plainly
def settings_of(model):
    """Return all that a model's categories depend on, beside its tokens."""
    return inputs.categories_of(CONFIG, model, WORDNET)


def every_asked(wildcards):
    """Return what is asked of each checkpoint that is gathered."""
    revisions = every_revision(wildcards, resolved=False)
    return [vars(asked(model, revision)) for model, revision in revisions]


@plainly
def described(wildcards):
    """Return the geometry.json of every revision; refuse those that nobody would make again."""
    paths = of_every_revision(REVISION.geometry)(wildcards)
    checkpoints = zip(map(Path, paths), every_asked(wildcards), strict=True)
    inputs.require_made_as_asked(checkpoints, recorded)
    return paths


@plainly
def categorized(wildcards):
    """Return the categories of every model; refuse those that nobody would make again."""
    paths = {model: str(CONCEPT.model.categories).format(model=model) for model in CONFIG.models}
    for model, section in CONFIG.models.items():
        inputs.require_listed_as_asked(section, results_of(model).vocabulary, recorded)
    asked_now = ((Path(path), settings_of(model)) for model, path in paths.items())
    inputs.require_categorized_as_asked(asked_now, recorded)
    return list(paths.values())


def recorded(path):
    """Return the parameters with which Snakemake has recorded a file, as texts."""
    return workflow.persistence.params(IOFile(str(path)))


def mark_as_incomplete(path):
    """Let Snakemake make a file again, whatever else the next run does (rerun-incomplete)."""
    workflow.persistence.started(SimpleNamespace(output=[IOFile(str(path))]))


@plainly
def width(wildcards):
    """Return the width of a revision's matrix, or of the model's last, as far as it is known."""
    revision = wildcards.get("revision")
    if revision is None:
        shown = shown_revisions(wildcards, resolved=False)
        if not shown:
            return sizing.DEFAULT_WIDTH
        revision = shown[-1][1]
    folder = results_of(wildcards.model).folder / revision
    return inputs.width(model_of(wildcards), unquote(revision), folder)


def memory(wildcards, attempt):
    """Return the MB to ask for, more at each attempt."""
    return sizing.memory_mb(width(wildcards), PLACEMENT.gpus > 0) * attempt


def minutes(wildcards, attempt):
    """Return the minutes to ask for, more at each attempt."""
    return sizing.runtime_minutes(width(wildcards)) * attempt


def in_report(path, category, caption, title):
    """Return a result with its caption, category and title in the report."""
    caption = f"../report/{caption}.rst"
    subcategory = "{model}" if "{model}" in str(path) else None
    labels = {"result": title}
    return report(path, caption=caption, category=category, subcategory=subcategory, labels=labels)


def backends_result(file, title):
    """Return a file of the comparison for the report."""
    caption = f"backends_{Path(file).stem}" + "_table" * file.endswith(".html")
    return in_report(BACKENDS / file, "Backends", caption, title)


def compared_unembedding(wildcards):
    """Return γ of the checkpoint whose covariance the backends decompose, where one is named."""
    if COMPARISON.checkpoint is None:
        return []
    model, _, revision = COMPARISON.checkpoint.partition("/")
    try:
        inputs.require_revision(revision, pins(model, resolved=True), model)
    except UserError as error:
        raise WorkflowError(str(error)) from None  # while the run is on, no exit is heard
    return str(REVISION.unembedding).format(model=model, revision=folder_name(revision))


def in_all(section):
    """Return whether a branch runs by default: where the configuration has its section."""
    return section in CONFIG.model_fields_set


def announce():
    """Log where the jobs of this run will be; stop one that would wait for ever, or cannot write."""
    executor = workflow.executor_plugin.name
    with_conda = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    defaults = getattr(workflow.resource_settings.default_resources, "parsed", {})
    for line in preflight.notices(executor, with_conda, defaults):
        logger.warning(line)
    try:
        preflight.require_writable(Path("results"), Path("logs"))
        if executor == "slurm":
            asks_sacct = workflow.executor_settings.status_command == "sacct"
            preflight.require_slurm(defaults.get("slurm_partition"), asks_sacct)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def finish(failed):
    """Summarize what is left of a run that failed; list the results; say what there is."""
    logs = Path("logs/geometry")
    until = inputs.until_nothing(workflow.dag_settings.until, logs, STARTED)
    settings = {model: settings_of(model) for model in CONFIG.models}
    lines = (
        salvage(CONFIG, GEOMETRY, logs, STARTED, mark_as_incomplete, settings)
        if failed
        else results_there()
    )
    if CONFIG.models and GEOMETRY.folder.is_dir():
        write_manifest(GEOMETRY, CONFIG.keep_unembedding)
    print("\n".join(["", *until, *lines]))


def results_there():
    """Return the lines that end a successful run."""
    results = {
        GEOMETRY.summary: "one row per model and revision",
        CONCEPTS.summary: "the scores of concepts; beside it explorer.html, a page to look at",
        BACKENDS: "which eigensolver is fastest here",
        "results/mamba": "the selective scan on this machine's CPU",
    }
    there = {str(place): what for place, what in results.items() if Path(place).exists()}
    there["--report report.html"] = "added to the same command: all of it on one page"
    lines = terminal.table(GEOMETRY.summary) if CONFIG.models and GEOMETRY.summary.exists() else []
    return [*lines, "", "Done:", *(f"  {place:30} {what}" for place, what in there.items())]
