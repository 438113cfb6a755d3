"""Checkpoints: containers and names of arrays, damaged files, and runs that are resumed."""

import re
import shutil
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from pruning import Pruned, prune
from pruning.channels import load_pruned, save_pruned
from tests.support import other_devices


class Layer(NamedTuple):
    weight: np.ndarray
    bias: np.ndarray


def apply(params, x):
    first, (second,) = params["first"], params["rest"]
    return jax.nn.relu(x @ first.weight + first.bias[None]) @ second.weight + second.bias[None]


def network():
    rng = np.random.default_rng(2)
    first = Layer(rng.normal(size=(3, 6)), rng.normal(size=6))
    second = Layer(rng.normal(size=(6, 2)), rng.normal(size=2))
    return {"first": first, "rest": [second]}, rng.normal(size=(4, 3))


@pytest.mark.parametrize("resize", [False, True])
def test_a_tree_of_other_nodes_is_read_as_dictionaries_or_like_a_tree(tmp_path, resize):
    params, x = network()
    pruned = prune(apply, params, x, ratios=[0.5], resize=resize, checkpoint_dir=tmp_path)
    first, second = pruned.params["first"], pruned.params["rest"][0]
    found = load_pruned(tmp_path).params
    expected = {
        "first": {"weight": first.weight, "bias": first.bias},
        "rest": {"0": {"weight": second.weight, "bias": second.bias}},
    }
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for like in (params, jax.eval_shape(lambda: pruned.params)):
        loaded = load_pruned(tmp_path, apply, like=like)
        assert isinstance(loaded.params["first"], Layer)
        np.testing.assert_allclose(
            loaded.apply(loaded.params, x), apply(pruned.params, x), rtol=1e-12
        )
    turned = {"first": Layer(first.bias, first.weight), "rest": [second]}
    with pytest.raises(ValueError, match="first/weight must have shape"):
        load_pruned(tmp_path, like=turned)


def test_a_checkpoint_of_more_devices_than_there_are_is_read_and_resumed(tmp_path):
    params, x = network()
    here = jax.tree.map(jnp.asarray, params)
    there = jax.device_put(here, NamedSharding(jax.make_mesh((2,), ("x",)), P()))
    pruned = prune(apply, there, x, ratios=[0.5], checkpoint_dir=tmp_path)
    assert len(load_pruned(tmp_path).params["rest"]["0"]["bias"].devices()) == 2
    other_devices.rename(tmp_path)
    found = load_pruned(tmp_path, apply, like=params)
    resumed = prune(apply, here, x, ratios=[0.5], checkpoint_dir=tmp_path)
    for again in (found, resumed):
        jax.tree.map(np.testing.assert_array_equal, again.params, pruned.params)
        assert again.params["rest"][0].bias.devices() == {jax.devices()[0]}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_is_not_resumed_if_other_layers_are_excluded(tmp_path, steps):
    def three(params, x):
        hidden = jax.nn.relu(jax.nn.relu(x @ params["a"]) @ params["b"])
        return hidden @ params["c"]

    def stop(step, pruned):
        if step + 1 == steps:
            raise KeyboardInterrupt

    rng = np.random.default_rng(3)
    params = {"a": rng.normal(size=(3, 8)), "b": rng.normal(size=(8, 6))}
    params |= {"c": rng.normal(size=(6, 2))}
    run = partial(prune, three, params, np.ones((1, 3)), ratios=[0.25, 0.5])
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint_dir=tmp_path / "all", callback=stop)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint_dir=tmp_path / "one", callback=stop, exclude=["a"])
    others: list[tuple[str, dict[str, Any]]] = [
        ("all", {"exclude": ["a"]}),
        ("one", {}),
        ("one", {"exclude": ["b"]}),
    ]
    for name, options in others:
        said = (
            r"^checkpoint_dir must hold a run with the same exclude and resize; .* concern [abc]:"
        )
        with pytest.raises(ValueError, match=said):
            run(checkpoint_dir=tmp_path / name, **options)
    resumed = run(checkpoint_dir=tmp_path / "one", exclude=["a"]).params
    jax.tree.map(np.testing.assert_array_equal, resumed, run(exclude=["a"]).params)


def test_the_network_that_was_saved_last_is_read_whatever_its_step(tmp_path):
    params = {
        "a": [np.arange(6.0).reshape(2, 3), np.array([1, 2], "int8")],
        "b": (np.ones((1, 4)), None),
    }
    for step, factor in ((2, 1), (7, 4), (7, 5), (1, 3)):
        pruned = Pruned(jax.tree.map(lambda p, k=factor: k * p, params), (), (), jnp.sum)
        save_pruned(tmp_path, pruned, step=step)
    assert len(list(tmp_path.iterdir())) == 1
    loaded = load_pruned(tmp_path, jnp.sum)
    assert (loaded.groups, loaded.keep, loaded.kept_indices()) == ((), (), {})
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    for found, leaf in zip(*map(jax.tree.leaves, (loaded.params, params)), strict=True):
        assert found.dtype == leaf.dtype
        np.testing.assert_array_equal(found, 3 * leaf)


def test_arrays_keep_their_names_whatever_the_order_of_a_dictionary(tmp_path):
    params = {"second": np.zeros(2), "first": np.ones(3)}
    save_pruned(tmp_path, Pruned(params, (), (), jnp.sum))
    jax.tree.map(np.testing.assert_array_equal, load_pruned(tmp_path).params, params)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit": flip,
    "half a file": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "an empty file": lambda path: path.write_bytes(b""),
}


# If TensorStore fails to read one array, other reads can end when Orbax has already closed its
# event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_of_any_file_with_arrays_is_noticed(tmp_path, name):
    """The arrays have random bits, so that no compression hides the damage."""
    mlp = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(40, 80)), "b": rng.normal(size=(80, 30))}
    pruned = prune(mlp, params, rng.normal(size=(4, 40)), ratios=[0.5])
    save_pruned(tmp_path / "whole", pruned)
    files = [p for p in (tmp_path / "whole").rglob("d/*") if p.stat().st_size > 1000]
    assert files
    for number, path in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        DAMAGES[name](copy / path.relative_to(tmp_path / "whole"))
        with pytest.raises(ValueError, match=r"^checkpoint_dir must hold a whole checkpoint of"):
            load_pruned(copy, mlp)
    same = load_pruned(tmp_path / "whole", mlp)
    np.testing.assert_array_equal(same.params["a"], pruned.params["a"])


def test_a_tree_that_does_not_fit_the_kept_channels_is_not_saved(tmp_path):
    params, x = network()
    pruned = prune(apply, params, x, ratios=[0.5])
    for wrong in (params, {"params": pruned.params}, pruned.params | {"more": np.ones(2)}):
        with pytest.raises(ValueError, match=r"^params must be the smaller tree, such as the fie"):
            save_pruned(tmp_path, pruned._replace(params=wrong))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("done", [1, 2])
@pytest.mark.parametrize("noted", [True, False])
def test_a_run_goes_on_from_the_step_that_was_saved(tmp_path, monkeypatch, noted, done):
    """The checksum of the arrays before pruning is None, or the checkpoint has no entry for it."""
    params, x = network()
    ratios, steps = (0.2, 0.6), []

    def tuned(tree, step):
        steps.append(step)
        return jax.tree.map(lambda p: (1.5 + step) * p, tree)

    run = partial(prune, apply, params, x, fine_tune=tuned)
    whole = run(ratios=ratios)
    with monkeypatch.context() as patch:
        if not noted:
            save: Any = ocp.args.JsonSave
            without = lambda notes: save({k: notes[k] for k in notes if k != "original"})  # noqa: E731
            patch.setattr(ocp.args, "JsonSave", without)
        save_pruned(tmp_path, run(ratios=ratios[:done]), step=done, ratios=ratios)
    (tmp_path / "3.orbax-checkpoint-tmp" / "arrays").mkdir(parents=True)  # a killed save
    steps.clear()
    found = run(ratios=ratios, checkpoint_dir=tmp_path)
    assert steps == [0, 1][done:]
    jax.tree.map(np.testing.assert_array_equal, found.params, whole.params)
    assert found.kept_indices() == whole.kept_indices()


def test_like_may_not_mix_the_widths_before_and_after_pruning(tmp_path):
    """Two of three arrays have widths before pruning, and one the width after it, or vice versa."""
    params, x = network()
    pruned = prune(apply, params, x, ratios=[0.5], checkpoint_dir=tmp_path)
    paths = ("first/weight", "first/bias", "rest/0/weight")
    (small, structure), large = jax.tree.flatten(pruned.params), jax.tree.leaves(params)
    for odd in range(3):
        for most, other in ((small, large), (large, small)):
            leaves = [other[k] if k == odd else leaf for k, leaf in enumerate(most)]
            wrong = next(k for k in range(3) if leaves[k] is large[k])
            shapes = small[wrong].shape, large[wrong].shape
            said = "{} must have shape {}, or {} as before pruning, got {}".format(
                paths[wrong], *shapes, shapes[1]
            )
            with pytest.raises(ValueError, match=re.escape(said)):
                load_pruned(tmp_path, like=jax.tree.unflatten(structure, leaves))


def test_like_may_not_have_the_arrays_in_another_order(tmp_path):
    params, x = {"b": np.ones((4, 2)), "a": np.ones((3, 4))}, np.ones((1, 3))
    run = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    prune(run, params, x, ratios=[0.5], checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=r"were saved; like has them in another order: build like"):
        load_pruned(tmp_path, like=OrderedDict(params))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "targets",
    [
        {"ratios": np.array([0.2, 0.5], "float32")},
        {"ratios": jnp.array([0.2, 0.5], "float32")},
        {"budget": np.array([50, 30])},
        {"budget": np.int64(30)},
        {"budget": jnp.array(0.5)},
    ],
)
def test_a_run_with_numbers_of_numpy_or_jax_resumes(targets, tmp_path):
    params = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}
    run = partial(prune, lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], params, np.ones((2, 2)))
    steps: list[int] = []
    options = {"checkpoint_dir": tmp_path, "callback": lambda step, _: steps.append(step)}
    (numbers,) = targets.values()
    for found in (run(**targets, **options), run(**targets, **options)):
        assert found.params["a"].shape == (2, 3 if 30 in np.ravel(numbers) else 4)
        assert steps == list(range(np.size(numbers)))
        others: dict[str, Any] = {"step": np.int64(3), "ratios": np.array([0.5], "float32")}
        save_pruned(tmp_path / "again", found, **others)
        assert load_pruned(tmp_path / "again").params["a"].shape == found.params["a"].shape
