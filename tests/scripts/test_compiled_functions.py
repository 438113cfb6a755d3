"""Cases of public functions that are compiled ahead of time, and their rows."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

import geometry
import jaxnorm
from experiments.compiled import functions as compiled_functions
from experiments.compiled.functions import Case, case, cases, f32, random_key

PAGE = Path(__file__).parents[2] / "docs/results/compiled/results.json"


def doubled(x):
    return 2 * x


def test_a_case_names_its_function_its_shapes_and_its_options():
    found = case(jaxnorm.standardize, f32(3, 2), (f32(3, 2), f32()), random_key(), axis=0, eps=1.0)
    assert found.name == "jaxnorm.standardize"
    assert found.size == "2 of 3×2, scalar; axis 0, eps 1.0"
    assert case(doubled, random_key()).size == ""
    assert case(geometry.tree.neurons, f32(5), depth=2).name == "geometry.tree.neurons"
    x = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(found.program(x), jaxnorm.standardize(x, axis=0, eps=1.0))


def test_a_row_has_what_was_measured_or_the_first_line_of_the_error(monkeypatch):
    def refused(x):
        raise ValueError("no such\nprogram")

    table = [
        Case(doubled, doubled, (f32(4, 10),)),
        Case(doubled, jnp.sort, (f32(4, 8),), "odd"),
        Case(doubled, lambda: None, ()),
        Case(doubled, refused, (f32(2, 3), f32(2, 3))),
        Case(doubled, refused, (f32(2, 3),)),
    ]
    monkeypatch.setattr(compiled_functions, "cases", lambda: table)
    mesh = jax.make_mesh((2,), ("half",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("half"))  # the numbers of a row are for one device
    row, sort, nothing, wrong, error = compiled_functions.function_rows(sharding)
    assert {each["function"] for each in (row, sort, nothing, wrong, error)} == {
        compiled_functions.qualified_name(doubled)
    }
    assert row["size"] == "4×10"
    assert row["megabytes"] == 2 * 80e-6  # 20 float32 on each device are read and written
    assert row["ratio_to_arguments_and_results"] == 1
    assert (row["kernels"], row["notable"], row["unknown_loops"]) == (1, {}, 0)
    assert 0 < row["seconds"] < 60
    assert (sort["size"], sort["notable"]) == ("4×8; odd", {"sort": 1})
    assert nothing["ratio_to_arguments_and_results"] == 0
    assert (wrong["size"], wrong["error"].partition(":")[0]) == ("2 of 2×3", "TypeError")
    assert error == {
        "function": row["function"], "size": "2×3", "error": "ValueError: no such"
    }  # fmt: skip


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_the_committed_page_has_the_sizes_of_the_cases(target):
    """Sizes are compared for all functions on the committed page; newer functions are ignored."""
    rows = json.loads(PAGE.read_text(encoding="utf-8"))["targets"][target]["functions"]
    committed = {(row["function"].rpartition(".")[2], numbers(row["size"])) for row in rows}
    sizes = {(each.function.__name__, numbers(each.size)) for each in cases()}
    shared = {name for name, _ in committed} & {name for name, _ in sizes}
    assert len(shared) > 80
    assert {size for size in sizes if size[0] in shared} == {
        size for size in committed if size[0] in shared
    }


def numbers(size):
    return tuple(re.findall(r"[\d.×]+|scalar", size))


def test_every_case_is_a_call_that_its_function_takes():
    for each in cases():
        inspect.signature(each.program).bind(*each.arguments)
        keys = [i for i, x in enumerate(each.arguments) if is_key(x)]
        assert keys in ([], [0])
        assert {leaf.dtype for leaf in jax.tree.leaves(each.arguments) if not is_key(leaf)} <= {
            np.dtype(np.float32)
        }


def is_key(x):
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.slow
@pytest.mark.usefixtures("users_jax")
def test_every_case_can_be_traced():
    for each in cases():
        assert jax.tree.leaves(jax.eval_shape(each.program, *each.arguments))


def test_estimates_draw_what_their_note_says(key):
    for estimate in compiled_functions.estimates():
        program: Any = estimate.program
        assert estimate.note == f"samples {program.keywords['samples']}"
    draws = jax.jit(jax.vmap(compiled_functions.max_of_100))(jax.random.split(key, 4000))
    # The expected maximum is ∫ x 100 Φ(x)⁹⁹ φ(x) dx = 2.5076.
    assert abs(float(draws.mean()) - 2.5076) < 5 * float(draws.std()) / 4000**0.5


def test_distances_are_taken_with_weights_and_summed():
    """The expected distance of each feature is computed by SciPy."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), rng.normal(1, 2, size=(5, 2))
    weights = rng.uniform(size=6), rng.uniform(size=5)

    def distances(*weights):
        return [stats.wasserstein_distance(a, b, *weights) for a, b in zip(x.T, y.T, strict=True)]

    found = compiled_functions.weighted_emd_1d(*map(jnp.asarray, (x, y, *weights)))
    np.testing.assert_allclose(found, distances(*weights), rtol=1e-6)
    found = compiled_functions.summed_emd_1d(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(found, sum(distances()), rtol=1e-6)
