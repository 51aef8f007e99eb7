"""How thoroughly the promises of docs/reliability.md are tested."""

import os

SOAK = bool(os.environ.get("SOAK"))
"""Set by `make soak`: every combination, and many more repetitions, within 20 minutes."""

TOKEN = "hf_secretsecretsecret"
