"""How a round divides, and the measured devices."""

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.costs import testbeds


def test_parts_are_those_of_the_slowest_client_and_sum_to_its_round():
    fleet = fo.costs.devices([20.0, 5.0, 40.0], 5.0, [0.1, 0.2, 0.9])
    parts = fo.costs.round_parts(fleet, [10, 10, 5], 40.0, 10.0, server_seconds=0.5)
    # 2 + 1 + 2, 8 + 2 + 2 and 1 + 4.5 + 2 seconds.
    np.testing.assert_allclose(parts, [8.0, 2.0, 2.0, 0.5])
    np.testing.assert_allclose(parts.seconds, 12.5)
    np.testing.assert_allclose(parts.shares, np.array([8.0, 2.0, 2.0, 0.5]) / 12.5)
    whole = fo.costs.round_seconds(fleet, [0, 1, 2], [10, 10, 5], 40.0, 10.0).seconds
    np.testing.assert_allclose(parts.seconds - parts.server, whole)


def test_devices_that_are_alike_are_one_round():
    parts = fo.costs.round_parts(fo.costs.devices(*testbeds.LTE, 0.31), 50, 40.0, 40.0)
    np.testing.assert_allclose(parts, [2.0, 15.5, 8.0, 0.0])
    assert parts.seconds.shape == ()


def test_the_papers_tasks_are_on_the_measured_board():
    for name, task in fo.planning.paper_tasks().items():
        assert task.devices == (20.0, 5.0, testbeds.PI_3B_PLUS[name].mean)
        assert testbeds.PI_3B_PLUS[name].deviation < 0.06 * testbeds.PI_3B_PLUS[name].mean
    # FedAvg's row, to which the link belongs.
    np.testing.assert_allclose(
        [6.37 / testbeds.WIFI.download, 6.37 / testbeds.WIFI.upload], [1.5, 1.8]
    )


@pytest.mark.parametrize("name", ["num_steps", "megabits_down", "megabits_up", "server_seconds"])
def test_negative_numbers_are_refused(name):
    good = {"num_steps": 1, "megabits_down": 1.0, "megabits_up": 1.0, "server_seconds": 0.0}
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        fo.costs.round_parts(fo.costs.devices(20.0, 5.0, 0.1), **(good | {name: -1.0}))
