"""The direction of a concept in g: linear discriminant analysis with Ledoit and Wolf's covariance.

Of the n × d rows G of a synset's members, with mean m and centred rows x (Park et al. 2024,
arXiv 2406.01506, section 5; Ledoit & Wolf 2004):

    S = Σ xxᵀ / n    μ = tr S / d    Δ = ‖S − μI‖²    β = (Σ ‖x‖⁴ / n − ‖S‖²) / n
    δ = min(β, Δ) / Δ    Σ = (1 − δ) S + δμI    v = Σ⁺m    ℓ = (mᵀv / vᵀv) v

No d × d matrix is formed where n ≤ d. With H = GGᵀ, its centred K and q, the products of the
centred rows with m, the matrix inversion lemma gives (K + nδμ / (1 − δ) I) c = q and v as a
multiple of Gᵀ(1/n − (c − c̄)), and K alone gives δ. Subsets of the members reuse blocks of H. Where
n > d, S is built instead, and the parts of a set give the set's by a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unembedding.backends import Backend
from unembedding.blas import one_thread_each
from unembedding.concepts.categories import Categories

Gram = Callable[[np.ndarray], np.ndarray]
"""Returns A Aᵀ of a matrix A, float64: nearly all of the work, and so what a GPU would do."""

SUBSETS = ("all", "train", "half0", "half1")
# Of the rows' mean square: a smaller multiple of the identity is lost in the rounding of products,
# as that of two rows, which is zero. Then ℓ = m.
LEAST_RIDGE = 1e-6
BLOCK = 4096  # columns of a product that is formed in float32 and summed in float64


def gram_float64(matrix: np.ndarray) -> np.ndarray:
    """Return A Aᵀ, all in float64."""
    wide = matrix.astype(np.float64, copy=False)
    return wide @ wide.T


def gram_float32(matrix: np.ndarray) -> np.ndarray:
    """Return A Aᵀ with products in float32: half the time, and ℓ is the same to 1e-7."""
    total = np.zeros((len(matrix), len(matrix)))
    for first in range(0, matrix.shape[1], BLOCK):
        block = np.ascontiguousarray(matrix[:, first : first + BLOCK])
        total += block @ block.T  # NumPy sees that it is symmetric, and calls syrk
    return total


def gram_of(backend: Backend) -> Gram:
    """Return the ``Gram`` of a backend, with products in float32 as in ``gram_float32``."""

    def gram(matrix: np.ndarray) -> np.ndarray:
        columns = range(0, matrix.shape[1], BLOCK)
        blocks = (np.ascontiguousarray(matrix[:, first : first + BLOCK].T) for first in columns)
        return backend.host(backend.gram(blocks, np.zeros(len(matrix)), np.dtype(np.float32)))

    return gram


@dataclass(frozen=True)
class Directions:
    """Directions of S synsets, all found from one kind of subset of their members."""

    vectors: np.ndarray
    """ℓ (S × d, float64); NaN where no member is in the subset."""
    shrinkage: np.ndarray
    """δ (S, float64), from 0, the sample's covariance, to 1, a multiple of the identity."""


def find_directions(
    g: np.ndarray, categories: Categories, gram: Gram = gram_float32
) -> dict[str, Directions]:
    """Return the directions of all synsets from each of ``SUBSETS`` of their members.

    ``g`` (float32 or float64) has a row for each of ``categories.tokens``.
    """
    width = g.shape[1]
    vectors = np.empty((len(SUBSETS), len(categories), width))
    shrinkage = np.empty((len(SUBSETS), len(categories)))
    large = np.flatnonzero(categories.sizes > width).tolist()
    for synset, solved in _of_large(g, categories, large, gram):
        for i, (vector, δ) in enumerate(solved):
            vectors[i, synset], shrinkage[i, synset] = vector, δ
    for cover, group in _covers(categories, large):
        covered = categories.places(cover)
        rows = g[covered]
        products = _products(rows, gram)
        weights = np.zeros((len(SUBSETS), len(group), len(covered)))
        members = [np.searchsorted(covered, categories.places(synset)) for synset in group]
        subsets = [subsets_of(categories, synset) for synset in group]
        with one_thread_each() as pool:
            found = pool.map(_weigh, repeat(products), members, subsets, repeat(width))
            for place, (within, each) in enumerate(zip(members, found, strict=True)):
                weights[:, place, within], shrinkage[:, group[place]] = each
        vectors[:, group] = weights @ rows
    vectors[np.isnan(shrinkage)] = np.nan
    return {name: Directions(vectors[i], shrinkage[i]) for i, name in enumerate(SUBSETS)}


def subsets_of(categories: Categories, synset: int) -> list[np.ndarray]:
    """Return which members (bool) are in each of ``SUBSETS``."""
    members = categories.of(synset)
    held_out, half = categories.held_out[members], categories.half[members]
    return [np.ones(len(half), bool), ~held_out, half == 0, half == 1]


def _weigh(
    products: np.ndarray, within: np.ndarray, subsets: Sequence[np.ndarray], width: int
) -> tuple[np.ndarray, list[float]]:
    """Return weights (subsets × n) and δ of one synset, from products of more rows than its own."""
    block = products[np.ix_(within, within)]
    weights, shrinkage = np.zeros((len(subsets), len(within))), []
    for i, chosen in enumerate(subsets):
        part = block if chosen.all() else block[np.ix_(chosen, chosen)]
        weights[i, chosen], δ = combine(part, width)
        shrinkage.append(δ)
    return weights, shrinkage


def combine(products: np.ndarray, width: int) -> tuple[np.ndarray, float]:
    """Return the weights of the members' rows that add up to ℓ (n), and δ.

    ``products`` (n × n, float64) are those of the rows with each other, whose width is d. Without
    members δ is NaN.
    """
    n = len(products)
    if n == 0:
        return np.empty(0), np.nan
    with_mean = products.mean(axis=1)  # of each row
    mean_square = with_mean.mean()
    centred = products - with_mean[:, None]
    centred -= with_mean - mean_square
    squares = centred.diagonal().copy()
    shrinkage, scale = shrink(squares, np.vdot(centred, centred) / n**2, width)
    weights = np.full(n, 1 / n)
    if ridge := _ridge(n, shrinkage, scale, width):
        centred.flat[:: n + 1] += ridge
        solution = _solve(centred, with_mean - mean_square)
        weights -= solution - solution.mean()
    with_direction = products @ weights
    return _rescaled(weights, with_direction.mean(), weights @ with_direction), shrinkage


def shrink(squares: np.ndarray, norm: float, width: int) -> tuple[float, float]:
    """Return Ledoit and Wolf's δ and μ from ‖x‖² of each of n centred rows, and from ‖S‖²."""
    n, trace = len(squares), squares.mean()
    distance = norm - trace**2 / width
    error = (np.square(squares).mean() - norm) / n
    # One row, or S a multiple of I: any δ gives the same Σ, up to its scale.
    shrinkage = min(max(error, 0.0), distance) / distance if distance > 0 else 1.0
    return shrinkage, trace / width


def _ridge(n: int, shrinkage: float, scale: float, width: int) -> float:
    """Return nδμ / (1 − δ), or 0 where ℓ is the mean m: where it is nothing, or all there is."""
    if not 0 < shrinkage < 1:
        return 0.0
    ridge = n * shrinkage * scale / (1 - shrinkage)
    return ridge if ridge > LEAST_RIDGE * scale * width else 0.0


def _products(rows: np.ndarray, gram: Gram) -> np.ndarray:
    """Return the products of rows with each other, so that float32 rounds only their differences.

    The rows are centred for ``gram``, and what that takes from the products is given back.
    """
    centre = rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    centred = rows - centre
    with_centre = (centred @ centre).astype(np.float64)
    products = gram(centred)
    products += with_centre[:, None]
    products += with_centre + np.square(centre, dtype=np.float64).sum()
    return products


def _of_large(
    g: np.ndarray, categories: Categories, large: Sequence[int], gram: Gram
) -> Iterator[tuple[int, list[tuple[np.ndarray, float]]]]:
    """Yield synsets with more members than the width, with ℓ and δ of each of ``SUBSETS``.

    The halves are the same in all synsets, so a synset's moments begin with those of the largest
    one below it.
    """
    centre = g.mean(axis=0, dtype=np.float64).astype(g.dtype)
    below: dict[int, int] = {
        above: synset
        for above, synset in sorted(categories.edges.tolist(), key=lambda e: categories.sizes[e[1]])
        if synset in large
    }
    moments: dict[int | None, list[np.ndarray]] = {}
    for synset in sorted(large, key=lambda s: -categories.depth[s]):
        places = categories.places(synset)
        rows = g[places] - centre
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        subsets = subsets_of(categories, synset)
        _, train, first, second = subsets
        nested = below.pop(synset, None)
        added = np.ones(len(places), bool)
        if nested is not None:
            added = ~np.isin(places, categories.places(nested))
        halves = [gram(rows[half & added].T) for half in (first, second)]
        for moment, part in zip(halves, moments.get(nested, ()), strict=False):
            moment += part
        moments = {s: m for s, m in moments.items() if s in below.values()}
        if synset in below.values():
            moments[synset] = halves
        whole = halves[0] + halves[1]
        of_train = whole - gram(rows[~train].T)
        solve = partial(_from_moment, rows, squares, centre)
        with one_thread_each() as pool:
            yield synset, list(pool.map(solve, subsets, (whole, of_train, *halves)))


def _from_moment(
    rows: np.ndarray,
    squares: np.ndarray,
    centre: np.ndarray,
    chosen: np.ndarray,
    moment: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Return ℓ and δ of chosen rows r + centre from ‖r‖² and M = Σ rrᵀ."""
    rows, squares = rows[chosen], squares[chosen]
    n, width = rows.shape
    if n == 0:
        return np.full(width, np.nan), np.nan
    shift = rows.mean(axis=0, dtype=np.float64)  # S = M / n − ssᵀ, which is not formed
    square = np.vdot(entries := moment.ravel(order="K"), entries)
    norm = square / n**2 - 2 * shift @ (moment @ shift) / n + (shift @ shift) ** 2
    with_shift = rows @ shift.astype(rows.dtype)
    shrinkage, scale = shrink(squares - 2 * with_shift + shift @ shift, norm, width)
    mean = direction = centre + shift
    if ridge := _ridge(n, shrinkage, scale, width):
        diagonal = moment.diagonal().copy()
        moment.flat[:: width + 1] += ridge
        of_mean, of_shift = _solve(moment, np.stack([mean, shift], axis=1)).T
        moment.flat[:: width + 1] = diagonal
        # The inverse of a difference of rank one (Sherman & Morrison 1950).
        direction = of_mean + of_shift * (n * shift @ of_mean / (1 - n * shift @ of_shift))
    return _rescaled(direction, mean @ direction, direction @ direction), shrinkage


def _solve(symmetric: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve for a positive definite matrix: by a factor in float32, refined once in float64.

    That takes half as long as float64 and is as exact, where the matrix is as far from singular as
    shrinkage leaves it; where the factor does not exist, all is float64.
    """
    if not symmetric.flags.f_contiguous:
        symmetric = symmetric.T  # the same matrix, in the order that LAPACK needs no copy of
    try:
        factor = cho_factor(symmetric.astype(np.float32), overwrite_a=True, check_finite=False)
    except LinAlgError:
        return cho_solve(cho_factor(symmetric, check_finite=False), right, check_finite=False)
    solution = cho_solve(factor, right.astype(np.float32), check_finite=False).astype(np.float64)
    rest = (right - symmetric @ solution).astype(np.float32)
    return solution + cho_solve(factor, rest, check_finite=False)


def _rescaled(vector: np.ndarray, along: float, square: float) -> np.ndarray:
    """Return (mᵀv / vᵀv) v; where v is zero, so is ℓ."""
    return vector * (along / square if square > 0 else 0.0)


def _covers(categories: Categories, large: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield synsets with those below them, whose members are all among theirs; none is large."""
    groups: dict[int, list[int]] = {}
    cover: dict[int, int] = {}
    for synset in np.argsort(categories.depth, kind="stable").tolist():  # parents first
        if synset in large:
            continue
        parents = categories.edges[categories.edges[:, 1] == synset, 0].tolist()
        cover[synset] = next((cover[p] for p in parents if p in cover), synset)
        groups.setdefault(cover[synset], []).append(synset)
    yield from groups.items()
