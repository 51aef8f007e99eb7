"""What the rules share: the validated configuration, and functions that tell a rule its inputs."""

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from urllib.parse import unquote

sys.path.insert(0, str(Path(workflow.current_basedir).parents[1] / "src"))

from unembedding.workflow.configuration import ConfigurationError, load
from unembedding.errors import UserError
from unembedding.workflow.preflight import ExecutionError, notices, require_slurm
from unembedding.files import read_facts
from unembedding.workflow.provenance import code_digest, share_with_jobs
from unembedding.workflow.salvage import salvage
from unembedding.workflow.sizing import (
    FETCH_MB,
    FETCH_MINUTES,
    matrix_width,
    memory_mb,
    runtime_minutes,
)
from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from unembedding.records.geometry import unasked
from unembedding.errors import GeometryError
from unembedding.checkpoints.revisions import LOCAL, folder_name, local_revisions, read_revisions

share_with_jobs()
try:
    CONFIG = load(config, workflow.configfiles)
except ConfigurationError as error:
    raise WorkflowError(str(error)) from None

UNEMBEDDING = "results/geometry/{model}/{revision}/unembedding.safetensors"
if not CONFIG.keep_unembedding:
    UNEMBEDDING = temp(UNEMBEDDING)
# `auto` can take the GPU only in an environment that has CuPy.
on_gpu = CONFIG.backend == "cupy" or (CONFIG.backend == "auto" and which("nvidia-smi"))
env = "cupy" if on_gpu else "torch" if CONFIG.backend == "torch" else "geometry"
BACKEND_ENV = f"../../envs/{env}.yaml"
GPUS = 1 if on_gpu or CONFIG.backend == "torch" else 0
# One submission does all of a revision, but a GPU does not wait for a download.
FETCH_GROUP = "download" if GPUS else "revision"
COMPARISON = CONFIG.backends
CHOICE = "results/backends/choice.json"
# Said of every model whose revisions are resolved for the first time, and cannot be.
logger.addFilter(lambda record: not str(record.msg).startswith("Cannot restore "))


wildcard_constraints:
    model="[^/]+",
    revision="[^/]+",


def model_params(wildcards):
    """Return what the configuration says of a model."""
    if wildcards.model not in CONFIG.models:
        known = ", ".join(CONFIG.models)
        # Not an error, to which Snakemake would add the traceback of an input function.
        sys.exit(f"There is no model {wildcards.model!r} in the configuration, only {known}.")
    return CONFIG.models[wildcards.model]


def revisions_present(wildcards):
    """Return the revisions of a local model, so that a new folder is noticed."""
    folder = model_params(wildcards).path
    try:
        return list(local_revisions(folder)) if folder else []
    except GeometryError:
        return []  # the job that resolves them says what is wrong


def pinned_revisions(wildcards):
    """Return the file that pins a model's revisions, once it holds what is asked for now."""
    return checkpoints.resolve_revisions.get(model=wildcards.model).output.pinned


def commits_of(path):
    """Return {revision: commit} of a ``revisions.tsv``, read once for its thousands of jobs."""
    return _read_once(path, Path(path).stat().st_mtime_ns)


@cache
def _read_once(path, changed):
    try:
        return read_revisions(Path(path))
    except GeometryError as error:
        sys.exit(str(error))  # as above


def commit(wildcards):
    """Return the commit that a revision is pinned to; None until it is."""
    # Not of ``input``: Snakemake sees no change in a parameter that is computed from it.
    pinned = Path("results/geometry", wildcards.model, "revisions.tsv")
    return commits_of(pinned).get(unquote(wildcards.revision)) if pinned.is_file() else None


def width(wildcards):
    """Return the width of a revision's matrix, or a guess where nothing is known of it yet."""
    folder = model_params(wildcards).path
    revision = unquote(wildcards.revision)
    return matrix_width(
        Path("results/geometry", wildcards.model, wildcards.revision),
        folder and (folder if revision == LOCAL else folder / revision),
    )


def memory(wildcards, attempt):
    """Return the MB to ask for, more at each attempt."""
    return memory_mb(width(wildcards), bool(GPUS)) * attempt


def minutes(wildcards, attempt):
    """Return the minutes to ask for, more at each attempt."""
    return runtime_minutes(width(wildcards)) * attempt


def checkpoint_files(wildcards):
    """Return the files of a local checkpoint; one on the Hub is pinned by its commit instead."""
    folder = model_params(wildcards).path
    if folder is None:
        return []
    local = local_revisions(folder).get(unquote(wildcards.revision))
    patterns = ("*.safetensors", "*.bin", "*.pt", "*.json")
    found = (f for p in patterns for f in local.glob(p)) if local else ()
    # A link to nowhere is left to the job, whose error is of one checkpoint, not of the run.
    return sorted(str(f) for f in found if f.exists())


def checkpoint_state(wildcards):
    """Return size and date of a local checkpoint's files: one may be replaced by an older file."""
    states = ((path, Path(path).stat()) for path in checkpoint_files(wildcards))
    return [(path, state.st_size, state.st_mtime_ns) for path, state in states]


def asked(wildcards):
    """Return what a geometry.json has to have been made with."""
    model = model_params(wildcards)
    return {
        "repo": model.repo or str(model.path),
        "commit": commit(wildcards),
        "tensor": model.unembedding,
        "precision": CONFIG.precision,
        "rows": model.rows,
    }


def checkpoints_resolved(model):
    """Return the folder names of a model's revisions, once they are resolved."""
    pinned = checkpoints.resolve_revisions.get(model=model).output[0]
    return [folder_name(revision) for revision in commits_of(pinned)]


def of_every_revision(pattern):
    """Return an input function: ``pattern`` for each revision of the model, or of every model."""

    def paths(wildcards):
        models = [wildcards.model] if hasattr(wildcards, "model") else sorted(CONFIG.models)
        return [
            pattern.format(model=model, revision=revision)
            for model in models
            for revision in checkpoints_resolved(model)
        ]

    return paths


def described(wildcards):
    """Return each geometry.json; stop the run where Snakemake would keep one that is not asked for.

    It knows what it made from its record in .snakemake/, and makes it again once that changes.
    """
    paths = of_every_revision("results/geometry/{model}/{revision}/geometry.json")(wildcards)
    unknown = [path for path in paths if Path(path).is_file() and not _is_recorded(path)]
    if differences := [found for found in map(_difference, unknown) if found]:
        sys.exit(
            f"{differences[0]}, and .snakemake/ has no record of it, as if that folder had been "
            f"deleted or the results copied. So it is with {len(differences)} checkpoints. Delete "
            "their folders of results/geometry/, or put back what was configured, and run again."
        )
    return paths


def _is_recorded(path):
    """Return whether Snakemake has a record of a file, be it that its job did not end."""
    persistence = workflow.persistence
    return persistence.metadata(IOFile(path)) or persistence._filter_incomplete_keys([path])


def _difference(path):
    try:
        geometry = read_facts(Path(path))
    except UserError as error:
        sys.exit(str(error))
    model, revision = Path(path).parts[-3:-1]
    return unasked(geometry, asked(SimpleNamespace(model=model, revision=revision)))


def geometry_plot(name):
    """Return a plot of the report, with the caption of its name."""
    return report(
        f"results/geometry/{{model}}/plots/{name}.svg",
        caption=f"../report/{name}.rst",
        category="Geometry",
        subcategory="{model}",
        labels={"plot": name.replace("_", " ")},
    )


def announce():
    """Log where the jobs of this run will be; stop one that would wait for ever, or cannot write."""
    for folder in ("results", "logs"):
        if Path(folder).exists() and not os.access(folder, os.W_OK):
            raise WorkflowError(
                f"{folder}/ cannot be written: it is on a read-only file system, or its "
                "permissions forbid it. Change that, or run in another folder with --directory."
            )
    executor = workflow.executor_plugin.name
    with_conda = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    for job in list(workflow.dag.needrun_jobs())[:1]:  # any: they share the default resources
        for line in notices(executor, with_conda, job.resources):
            logger.warning(line)
        if executor == "slurm":
            asks_sacct = workflow.executor_settings.status_command == "sacct"
            try:
                require_slurm(job.resources.get("slurm_partition"), asks_sacct)
            except ExecutionError as error:
                raise WorkflowError(str(error)) from None


def in_all(section):
    """Return whether a branch runs by default: where the configuration has its section."""
    return section in CONFIG.model_fields_set


def mamba_result(file, caption):
    """Return a file of the mamba branch for the report."""
    return report(
        file,
        caption=f"../report/{caption}.rst",
        category="Mamba",
        labels={"result": Path(file).name},
    )


def compared_unembedding(wildcards):
    """Return γ of the checkpoint whose covariance the backends decompose, where one is named."""
    if COMPARISON.checkpoint is None:
        return []
    model, _, revision = COMPARISON.checkpoint.partition("/")
    resolved = checkpoints_resolved(model)
    if folder_name(revision) not in resolved:
        known = ", ".join(unquote(folder) for folder in resolved)
        raise WorkflowError(
            f"backends.checkpoint: {revision!r} is none of the revisions of {model} ({known})."
        )
    return UNEMBEDDING.format(model=model, revision=folder_name(revision))


def compared_rows():
    """Return how many rows a job of the comparison uses: the configuration's, or the model's."""
    if COMPARISON.checkpoint is None:
        return COMPARISON.rows
    return CONFIG.models[COMPARISON.checkpoint.partition("/")[0]].rows


def conclusions(wildcards, input):
    """Return what the comparison says of this machine, for the captions."""
    return json.loads(Path(input.choice).read_text())["conclusions"]


def backends_result(file, caption):
    """Return a file of the comparison for the report."""
    return report(
        f"results/backends/{file}",
        caption=f"../report/backends_{caption}.rst",
        category="Backends",
        labels={"result": file},
    )


def where_results_are():
    """Return the lines that end a successful run."""
    results = {
        "results/geometry/summary.csv": "one row per model and revision",
        "results/geometry/<model>/<revision>/": "γ, its decomposition, g, profiles",
        "results/geometry/<model>/plots/": "the geometry over training",
        "results/backends/": "which eigensolver is fastest here",
        "results/mamba/": "the selective scan on this machine's CPU",
    }
    there = {
        place: what
        for place, what in results.items()
        if any(Path().glob(re.sub("<.*?>", "*", place)))
    }
    there["--report report.html"] = "added to the same command: all of it on one page"
    return "\n".join(["", "Done:", *(f"  {place:37} {what}" for place, what in there.items())])


def what_is_left():
    """Return the lines that end a run in which something failed."""
    return "\n".join(["", *salvage(workflow)])
