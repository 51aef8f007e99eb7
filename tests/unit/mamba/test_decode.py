"""One step of the scan after the other, against the scan of the whole."""

import pytest
import torch

from mamba_cpu.ops import selective_scan_fn, selective_state_update, ssd_scan

pytestmark = pytest.mark.usefixtures("kernel")


def test_steps_give_what_the_whole_gives():
    torch.manual_seed(0)
    x, dt, z = torch.randn(3, 2, 20, 9)
    B, C = torch.randn(2, 2, 5, 9)
    A, D, bias = -torch.rand(20, 5), torch.randn(20), torch.randn(20)
    expected, last = selective_scan_fn(x, dt, A, B, C, D, z, bias, True, True)
    state = torch.zeros(2, 20, 5)
    steps = [x[..., :0].permute(2, 0, 1)]
    for t in range(9):
        now = (x[..., t], dt[..., t], A, B[..., t], C[..., t], D, z[..., t], bias, True)
        steps.append(selective_state_update(state, *now)[None])
    torch.testing.assert_close(torch.cat(steps).permute(1, 2, 0), expected)
    torch.testing.assert_close(state, last)


def test_heads_and_groups_are_mamba_2s():
    torch.manual_seed(0)
    x, z = torch.randn(2, 2, 7, 4, 8)
    B, C = torch.randn(2, 2, 7, 2, 5)
    dt, A, D, bias = torch.randn(2, 7, 4), -torch.rand(4), torch.randn(4), torch.randn(4)
    expected, last = ssd_scan(x, dt, A, B, C, D, z, bias, True)
    state = torch.zeros(5, 4, 8, 5)
    slots = torch.tensor([4, 1])
    each = [t[:, None].expand(4, 8) for t in (D, bias)]
    A = A[:, None, None].expand(4, 8, 5)
    for t in range(7):
        now = (x[:, t], dt[:, t, :, None].expand(2, 4, 8), A, B[:, t], C[:, t])
        y = selective_state_update(state, *now, each[0], z[:, t], each[1], True, slots)
        torch.testing.assert_close(y, expected[:, t])
    torch.testing.assert_close(state[slots], last)
    assert not state[[0, 2, 3]].any()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"B": torch.ones(2, 4)}, ValueError, "B is"),
        ({"dt": torch.ones(2, 19)}, ValueError, "dt is"),
        ({"x": torch.ones(2, 3, 20)}, ValueError, "x is"),
        ({"A": torch.ones(20, 5, dtype=torch.complex64)}, TypeError, "A is complex"),
        ({"state_batch_indices": torch.tensor([0, 7])}, IndexError, "from 0 to 1"),
        ({"state_batch_indices": torch.tensor([1, 1])}, ValueError, "twice"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(changes, error, message):
    given = {"state": torch.ones(2, 20, 5), "x": torch.ones(2, 20), "dt": torch.ones(2, 20)}
    given |= {"A": torch.ones(20, 5), "B": torch.ones(2, 5), "C": torch.ones(2, 5)} | changes
    with pytest.raises(error, match=message):
        selective_state_update(**given)
    assert torch.equal(given["state"], torch.ones(2, 20, 5))
