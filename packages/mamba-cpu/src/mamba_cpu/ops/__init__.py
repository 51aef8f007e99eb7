"""The operators: functions of tensors, checked so that mistakes are told in words."""

from mamba_cpu.ops.checks import DTYPES
from mamba_cpu.ops.conv import WIDEST_CONVOLUTION, causal_conv1d, causal_conv1d_update
from mamba_cpu.ops.decode import selective_state_update
from mamba_cpu.ops.loading import cache_folder, kernel, load_kernel
from mamba_cpu.ops.scan import selective_scan_fn
from mamba_cpu.ops.ssd import ssd_scan

__all__ = [
    "DTYPES",
    "WIDEST_CONVOLUTION",
    "cache_folder",
    "causal_conv1d",
    "causal_conv1d_update",
    "kernel",
    "load_kernel",
    "selective_scan_fn",
    "selective_state_update",
    "ssd_scan",
]
