"""The NNX layers in every pair of options, compared with NumPy."""

import inspect
import re

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxnorm
from tests.support import numpy_layers
from tests.support.layers import layer_classes
from tests.support.numpy_layers import arguments, assert_outcome, called_with
from tests.support.numpy_programs import evaluated

NAMES = layer_classes(jaxnorm.nnx)


@pytest.mark.parametrize("name", NAMES)
def test_nnx_has_the_reference_s_outcome_in_every_pair_of_options(name):
    layer = getattr(jaxnorm.nnx, name)
    for case in numpy_layers.cases(name, layer):
        options = arguments(case)
        if "use_running_average" in case.call:  # the call overrides the layer's option
            options["use_running_average"] = not case.call["use_running_average"]
        made = layer(numpy_layers.CHANNELS, rngs=nnx.Rngs(0), **options)
        made.mean[...], made.var[...] = (
            jnp.asarray(values, "float32") for values in (numpy_layers.MEAN, numpy_layers.VAR)
        )
        graph, state = nnx.split(made)
        x, call = called_with(case)

        def called(state, x, graph=graph, call=call):
            layer = nnx.merge(graph, state)
            return layer(x, **call), layer.mean[...], layer.var[...]

        assert_outcome(case, *evaluated(called, state, x))


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_eps_wins_over_epsilon_in_both_frameworks(name, eps):
    x = 1.5 * jax.random.normal(jax.random.key(0), (7, 3)) + 2
    of_nnx, of_linen = getattr(jaxnorm.nnx, name), getattr(jaxnorm.linen, name)
    with jax.disable_jit():
        expected, other = (
            of_nnx(3, epsilon=epsilon, rngs=nnx.Rngs(0))(x) for epsilon in (eps, 2.0)
        )
        found = of_nnx(3, epsilon=2.0, eps=eps, rngs=nnx.Rngs(0))(x)
        made = of_linen(use_running_average=False, epsilon=2.0, eps=eps)
        y = made.init_with_output(jax.random.key(0), x)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(expected - other).max() > 1e-3


def defaults(function):
    """The default values of a function's or a constructor's arguments, by name."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize("framework", ["nnx", "linen"])
@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_flax_and_of_the_function(name, framework):
    of_layer = defaults(getattr(getattr(jaxnorm, framework), name).__init__)
    of_flax = defaults({"nnx": nnx, "linen": flax.linen}[framework].BatchNorm.__init__)
    of_function = defaults(getattr(jaxnorm, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    own = ("parent", "eps", "bias_metadata", "scale_metadata")
    known = {k: v for k, v in (of_function | of_flax).items() if k in of_layer and k not in own}
    assert {k: of_layer[k] for k in known} == known
    assert {"momentum", "epsilon", "use_scale", "use_bias", "groups", "correction"} <= set(known)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", NAMES)
def test_keys_must_be_given(name):
    with pytest.raises(TypeError, match=r"rngs must be nnx\.Rngs, such as"):
        getattr(jaxnorm.nnx, name)(3, rngs=None)


def test_the_plan_meets_every_pair_of_values():
    factors = numpy_layers.COMMON | numpy_layers.CALLED
    rows = numpy_layers.all_pairs(factors)
    assert len(rows) < 40
    for a in factors:
        for b in factors:
            if a != b:
                met = {(str(row[a]), str(row[b])) for row in rows}
                assert met == {(str(i), str(j)) for i in factors[a] for j in factors[b]}
