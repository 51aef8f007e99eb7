"""The unembedding matrix γ of a language model, and its causal geometry.

Data flows one way: a checkpoint (``sources``, ``formats``, ``layouts``) gives γ (``extraction``),
γ gives the eigendecomposition of its covariance (``decomposition``), and both give the causally
transformed matrix g (``transform``). Arithmetic on matrices lives in ``backends``.

Nothing here imports Snakemake, but for ``unembedding.workflow``; the rest works in a notebook.
"""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent, unless someone listens
