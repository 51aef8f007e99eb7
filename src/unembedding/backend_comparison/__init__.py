"""Which backend is fastest, on this machine, under this load.

``solvers`` is the table of who competes, ``matrices`` what they decompose, ``cpu_load`` who
disturbs them. ``measuring`` times the eigendecomposition alone and ``stages`` the whole job;
``choosing`` draws the choice that ``backend: auto`` reads, and the sentences of the report.

Nothing here imports Snakemake.
"""
