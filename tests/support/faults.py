"""Plausible faults: functions that turn a correct function into a wrong function."""

import jax.numpy as jnp

from pruning import ranking
from pruning.weight_tests import TestResult
from tests.support.mutations import result


def shifted(**changes):
    """A fault that multiplies the named fields of the result by factors."""
    return result(
        lambda value: value._replace(**{k: f * getattr(value, k) for k, f in changes.items()})
    )


def exchanged(right):
    """Exchange the two results of a function."""
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
    """A fault that changes the argument at the position `argument`."""

    def make(right):
        def wrong(*args, **options):
            args = list(args)
            args[argument] = change(args[argument])
            return right(*args, **options)

        return wrong

    return make


def option(**changes):
    """A fault that changes the values of the named options."""

    def make(right):
        def wrong(*args, **options):
            given = {k: f(options[k]) for k, f in changes.items() if options.get(k) is not None}
            return right(*args, **(options | given))

        return wrong

    return make


def squared(right):
    """Square the result, for example return a variance instead of a standard deviation."""
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
