"""The errors of repaired networks, and how a run continues."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

import repair
from experiments.cli import InputError
from experiments.measures import repair_images
from experiments.measures.repair import (
    margin,
    mean_of,
    of_images,
    p_value,
    pack,
    unpack,
    values_of_criteria,
)


def test_the_error_is_that_over_images_and_over_draws():
    rng = np.random.default_rng(0)
    errors, means = [], []
    for _ in range(400):  # both are drawn: images that are hard, draws that are good
        images, draws = rng.normal(size=300), 0.1 * rng.normal(size=(5, 1))
        found = mean_of(images + draws + rng.normal(size=(5, 300)))
        errors.append(found.stderr)
        means.append(found.mean)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    one = mean_of(rng.normal(size=(1, 300)))
    assert one.dof == 299


def test_of_one_draw_the_tests_are_scipy_s():
    values = np.random.default_rng(0).normal(np.reshape([0, 0.1, 0.3], (3, 1, 1)), size=(3, 1, 20))
    cells = dict(zip(("l1", "l2", "gm"), values, strict=True)) | {"random": 9 + values[0]}
    found = p_value(cells)
    assert found == pytest.approx(scipy.stats.friedmanchisquare(*values[:, 0]).pvalue)
    limit = margin(cells)
    assert limit is not None
    ttest: Any = scipy.stats.ttest_1samp
    # At the margin the one-sided test of the pair that is furthest apart has p = 5 %.
    p = [
        max(
            ttest(d, limit, alternative="less")[1],
            ttest(d, -limit, alternative="greater")[1],
        )
        for a in values[:, 0]
        for b in values[:, 0]
        if (d := a - b).any()
    ]
    assert max(p) == pytest.approx(0.05)


def test_what_is_found_is_packed_by_draw_and_criterion():
    found = np.random.default_rng(0).random(13) < 0.5
    np.testing.assert_array_equal(unpack(pack(found), 13), found)
    rows = [
        {"ratio": 0.5, "repair": "scaled", "criterion": c, "draw": d, "correct": pack(found)}
        for c in ("l1", "l2", "random")
        for d in (1, 0)
    ]
    table = of_images({"settings": {"test": 13}, "rows": rows[:-1]})
    cells = table["ResNet-20", 0.5, "scaled"]
    assert values_of_criteria(cells).shape == (2, 2, 13)
    assert cells["random"].shape == (1, 13)


def test_a_trained_network_needs_its_weights_and_images():
    with pytest.raises(InputError, match="resnet20 must have --weights and --data-dir"):
        repair.main(repair.Options("resnet20"))


def test_a_second_run_continues_one_of_the_same_settings_alone():
    settings = repair_images.Settings(images=8, test=4)
    rows = [{"draw": 0}]
    first = repair_images.resume(settings, {})
    again = repair_images.resume(settings, first | {"rows": rows, "seconds": 3.0})
    assert again == first | {"rows": rows}
    assert repair_images.resume(settings._replace(test=5), again)["rows"] == []
    assert repair_images.resume(settings._replace(draws=9), again)["rows"] == rows
