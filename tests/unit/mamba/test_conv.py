"""The causal convolution, its gradients, and its steps in generation."""

import pytest
import torch
from torch.nn import functional as F

from mamba_cpu.ops import causal_conv1d, causal_conv1d_update

pytestmark = pytest.mark.usefixtures("kernel")


def operands(batch=2, dim=20, length=30, width=4):
    torch.manual_seed(0)
    return torch.randn(batch, dim, length), torch.randn(dim, width), torch.randn(dim)


def by_torch(x, weight, bias, silu):
    y = F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=len(weight))
    return F.silu(y) if silu else y


@pytest.mark.parametrize("width", [1, 2, 4, 40])
@pytest.mark.parametrize("length", [1, 3, 100])
@pytest.mark.parametrize("silu", [True, False])
def test_values_and_gradients_are_torchs(width, length, silu):
    ours = [t.requires_grad_() for t in operands(length=length, width=width)]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    y, expected = causal_conv1d(*ours, silu=silu), by_torch(*theirs, silu)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(y)
    y.backward(weights)
    expected.backward(weights.double())
    for actual, exact in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cut", [1, 2, 17])
def test_final_states_are_the_initial_ones_of_what_follows(cut):
    x, weight, bias = operands()
    whole, last = causal_conv1d(x, weight, bias, True, return_final_states=True)
    first, between = causal_conv1d(x[..., :cut], weight, bias, True, return_final_states=True)
    second = causal_conv1d(x[..., cut:], weight, bias, True, initial_states=between)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole)
    assert torch.equal(last, x[..., -3:])


def test_a_sequence_sees_no_other():
    x, weight, bias = operands(batch=1)
    seq_idx = (torch.arange(30) >= 11).int()[None]
    y = causal_conv1d(x, weight, bias, True, seq_idx=seq_idx)
    apart = [causal_conv1d(part, weight, bias, True) for part in (x[..., :11], x[..., 11:])]
    torch.testing.assert_close(y, torch.cat(apart, dim=2))


@pytest.mark.parametrize("circular", [True, False])
@pytest.mark.parametrize("size", [3, 5])
def test_steps_give_what_the_whole_gives(circular, size):
    x, weight, bias = operands(batch=2)
    state = torch.zeros(4, 20, size)
    slots = torch.tensor([2, 0])
    ys = []
    for t in range(30):
        seen = torch.tensor([t, t]) if circular else None
        ys.append(causal_conv1d_update(x[..., t], state, weight, bias, "silu", seen, slots))
    torch.testing.assert_close(torch.stack(ys, dim=2), causal_conv1d(x, weight, bias, True))
    assert not state[[1, 3]].any() and state[slots].any()


def test_a_circular_state_keeps_the_last_of_more_inputs_than_it_has_room_for():
    x, weight, bias = operands(batch=2)
    state, seen = torch.zeros(2, 20, 4), torch.tensor([0, 0])
    y = causal_conv1d_update(x[..., :11], state, weight, bias, "silu", seen)
    last = causal_conv1d_update(x[..., 11:], state, weight, bias, "silu", seen + 11)
    whole = causal_conv1d(x, weight, bias, True)
    torch.testing.assert_close(torch.cat([y, last], dim=2), whole)


def test_rows_with_a_negative_slot_are_padding():
    x, weight, bias = operands(batch=3)
    state = torch.ones(4, 20, 5)
    slots = torch.tensor([-1, 2, -1])
    y = causal_conv1d_update(x, state, weight, bias, "silu", None, slots)
    alone = torch.ones(1, 20, 5)
    torch.testing.assert_close(y[1:2], causal_conv1d_update(x[1:2], alone, weight, bias, "silu"))
    assert not y[[0, 2]].any()
    assert torch.equal(state[2:3], alone) and (state[[0, 1, 3]] == 1).all()


def test_times_of_a_negative_sequence_are_padding():
    x, weight, bias = operands(batch=1)
    seq_idx = torch.where(torch.arange(30) < 20, 0, -1)[None]
    y = causal_conv1d(x, weight, bias, True, seq_idx=seq_idx)
    torch.testing.assert_close(y[..., :20], causal_conv1d(x[..., :20], weight, bias, True))
    assert not y[..., 20:].any()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation is 'gelu'"),
        ({"conv_state_indices": torch.tensor([0, 4])}, IndexError, "from 0 to 3"),
        ({"conv_state_indices": torch.tensor([1, 1])}, ValueError, "twice"),
        ({"conv_state_indices": None}, ValueError, "4 rows for a batch of 2"),
        ({"conv_state": torch.ones(4, 20, 2)}, ValueError, "3 or more"),
        ({"weight": torch.ones(19, 4)}, ValueError, "weight is"),
        ({"x": torch.ones(2, 20, dtype=torch.double)}, TypeError, "x is torch.float64"),
    ],
)
def test_a_mistake_in_a_step_is_told_before_anything_is_written(changes, error, message):
    _, weight, bias = operands()
    given = {"x": torch.ones(2, 20), "conv_state": torch.ones(4, 20, 3), "weight": weight}
    given |= {"bias": bias, "conv_state_indices": torch.tensor([0, 1])} | changes
    with pytest.raises(error, match=message):
        causal_conv1d_update(**given)
    assert torch.equal(given["conv_state"], torch.ones_like(given["conv_state"]))
