"""How alike two checkpoints are, in cases whose answer is known."""

import numpy as np
import pytest

from unembedding.agreement import alignment, principal_cosines

RNG = np.random.default_rng(0)
ROTATION = np.linalg.qr(RNG.standard_normal((6, 6)))[0]


def test_eigenspaces_that_share_a_direction_have_an_angle_of_zero_and_one_of_ninety_degrees():
    identity, swapped = np.eye(4), np.eye(4)[:, [0, 2, 1, 3]]
    np.testing.assert_allclose(principal_cosines(identity, swapped, 2), [1, 0])


def test_turning_a_leading_direction_by_an_angle_shows_that_angle():
    turn = np.deg2rad(30)
    turned = np.eye(3)
    turned[1:, 1:] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    np.testing.assert_allclose(principal_cosines(np.eye(3), turned, 1), [np.cos(turn)])


def test_alignment_does_not_change_with_a_rotation_or_a_scale():
    x = RNG.standard_normal((50, 6))
    assert alignment([x[:20], x[20:]], [3 * x[:20] @ ROTATION, 3 * x[20:] @ ROTATION]) == (
        pytest.approx(1)
    )


def test_alignment_is_that_of_the_two_gram_matrices():
    x, y = RNG.standard_normal((40, 6)), RNG.standard_normal((40, 5))
    k, other = x @ x.T, y @ y.T
    expected = (k * other).sum() / np.sqrt((k * k).sum() * (other * other).sum())
    assert alignment([x], [y]) == pytest.approx(expected)


def test_blocks_of_different_rows_are_refused():
    with pytest.raises(ValueError, match="3 and 2 rows"):
        alignment([np.ones((3, 2))], [np.ones((2, 2))])


def test_alignment_takes_whole_matrices_as_well_as_blocks():
    x, y = RNG.standard_normal((50, 6)), RNG.standard_normal((50, 4))
    blocks = alignment([x[:20], x[20:]], [y[:20], y[20:]])
    assert alignment(x, y) == pytest.approx(blocks)
    assert alignment(x, x @ ROTATION) == pytest.approx(1)


@pytest.mark.parametrize("count", [0, -1, 5])
def test_eigenvectors_that_there_are_not_are_refused(count):
    with pytest.raises(ValueError, match=f"no {count} leading"):
        principal_cosines(np.eye(4), np.eye(4), count)
