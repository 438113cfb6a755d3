"""Plausible faults: each makes a wrong function of a right one."""

import jax.numpy as jnp

from pruning import ranking
from pruning.weight_tests import TestResult
from tests.support.mutations import result


def shifted(**changes):
    """Makes a function whose result of a given name is multiplied by a factor."""
    return result(
        lambda value: value._replace(**{k: f * getattr(value, k) for k, f in changes.items()})
    )


def exchanged(right):
    """Makes a function that returns its two results in the other order."""
    return lambda *args, **options: type(right(*args, **options))(*right(*args, **options)[::-1])


def other_tail(right):
    def wrong(*args, **options):
        statistic, p_value = right(*args, **options)
        return TestResult(statistic, 1 - p_value)

    return wrong


def never(right):
    def wrong(*args, **options):
        statistic, p_value = right(*args, **options)
        return TestResult(statistic, jnp.ones_like(p_value))

    return wrong


def at_other(argument, change):
    """Makes a function whose argument at this position is changed."""

    def make(right):
        def wrong(*args, **options):
            args = list(args)
            args[argument] = change(args[argument])
            return right(*args, **options)

        return wrong

    return make


def option(**changes):
    """Makes a function whose options are changed."""

    def make(right):
        def wrong(*args, **options):
            given = {k: f(options[k]) for k, f in changes.items() if options.get(k) is not None}
            return right(*args, **(options | given))

        return wrong

    return make


def squared(right):
    """Makes a function that returns the variance in place of the standard deviation."""
    return lambda *args, **options: jnp.square(right(*args, **options))


def constant(value):
    return lambda right: lambda *args, **options: jnp.asarray(value)


def kendall(right):
    return ranking.kendall


def pearson(right):
    return lambda a, b: jnp.corrcoef(jnp.stack([a, b]))[0, 1]


def centroid(right):
    return lambda v: v.mean(0)


def middle_by_coordinate(right):
    return lambda v: jnp.median(v, axis=0)


def largest(right):
    return lambda scores, *, ratio: right(-scores, ratio=ratio)
