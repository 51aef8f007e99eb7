"""One step of decoding."""

from mamba_cpu.ops import selective_state_update

selective_state_update_ref = selective_state_update

__all__ = ["selective_state_update", "selective_state_update_ref"]
