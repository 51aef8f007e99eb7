"""One self-contained page to look at concepts and tokens: explorer.html with its data inside."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unembedding.concepts.storage import load_categories, load_made_with
from unembedding.concepts.summary import Scored
from unembedding.concepts.vocabulary import read_tokens
from unembedding.files import write_text
from unembedding.results import ConceptRevision

PAGE = Path(__file__).with_name("explorer.html")
PLACE = "@DATA@"
SCORES = ("auc", "linear", "self_agreement")
DIGITS = 3


def write_explorer(target: Path, scored: Sequence[Scored], tokens: Iterable[Path]) -> None:
    """Write the page of all models' checkpoints; ``tokens`` are the files of those shown whole.

    Its data are compressed JSON in base64, which browsers unpack (those of 2023 and later).
    """
    described = [ConceptRevision(path.parent) for path in tokens]
    models = dict.fromkeys(s.geometry.model for s in scored)
    data = [_model([s for s in scored if s.geometry.model == model], described) for model in models]
    text = json.dumps({"models": data}, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    write_text(target, PAGE.read_text(encoding="utf-8").replace(PLACE, packed))


def _model(scored: Sequence[Scored], described: Sequence[ConceptRevision]) -> dict[str, Any]:
    first = scored[0].results
    stored = load_categories(first.concepts.model)
    categories = stored.categories
    by_place = {s.results.concepts: s for s in scored}
    shown = [place for place in described if place in by_place]
    details = [_details(place, by_place[place]) for place in shown]
    texts = read_tokens(first.model.vocabulary).texts
    used = {int(i) for d in details for key in ("outsiders", "near") for i in np.ravel(d[key])}
    used |= {int(i) for d in details for i in d["queries"]} | set(categories.tokens.tolist())
    return {
        "name": scored[0].geometry.model,
        "settings": stored.settings,
        "tokens": {str(i): texts.get(i, "") for i in sorted(used)},
        "names": categories.names,
        "depth": categories.depth.tolist(),
        "edges": categories.edges.tolist(),
        "offsets": categories.offsets.tolist(),
        "members": categories.token_ids.tolist(),
        "heldOut": categories.held_out.astype(int).tolist(),
        "checkpoints": [_checkpoint(s) for s in scored],
        "shown": details,
    }


def _checkpoint(scored: Scored) -> dict[str, Any]:
    training = scored.geometry.training
    columns = [name + suffix for name in SCORES for suffix in ("", "_null")]
    return {
        "name": scored.geometry.revision,
        "step": training.step if training else None,
        "scores": {name: _rounded(scored.columns[name]) for name in columns},
    }


def _details(place: ConceptRevision, scored: Scored) -> dict[str, Any]:
    arrays = load_made_with(place, place.tokens)
    return {
        "name": scored.geometry.revision,
        "projections": _rounded(arrays["projections"]),
        "outsiders": arrays["outsiders"].tolist(),
        "outsidersProjections": _rounded(arrays["outsiders_projections"]),
        "queries": arrays["queries"].tolist(),
        "near": arrays["neighbours"].tolist(),
        "cosines": _rounded(arrays["cosines"], 2),
    }


def _rounded(values: np.ndarray, digits: int = DIGITS) -> Any:
    """Return nested lists of numbers, None for those that JSON has not."""
    rounded = np.round(np.asarray(values, np.float64), digits)
    finite = rounded.astype(object)
    finite[~np.isfinite(rounded)] = None
    return finite.tolist()
