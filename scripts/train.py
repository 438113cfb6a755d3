"""Train a network with any normalization, on a laptop or on all devices of many hosts.

    python scripts/train.py digits-mlp                              # seconds on a CPU
    python scripts/train.py cifar10-resnet20 --normalization unitized --data-dir DIR
    python scripts/train.py [cifar10-resnet20] --help    # all presets, or all options of one

The script writes settings, metrics (seed-0/metrics.jsonl and TensorBoard events) and checkpoints
to OUT, and at the end results.json and a page. An interrupted run resumes when it is started again,
and ends with the same results.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from experiments import cli, files, recipes
from experiments.options import Location, Natural, Positive, Seeds, check as check_ranges
from experiments.recipes import PRESETS, Evaluation, Recipe
from experiments.training import checks


@dataclass(frozen=True)
class Options:
    """How a recipe is run; only fake_data and init_from change the results by more than rounding.

    Attributes:
      data_dir: The folder (also gs:// or s3://) of the data set in tensorflow-datasets' format;
        digits need none.
      fake_data: Whether to measure the speed on random images; an epoch then has 20 batches.
      seeds: The number of networks, which have the seeds 0, 1, …
      vmap_seeds: Whether all seeds are trained as one program. With auto, this holds only for an
        mlp, because only an mlp trains faster as one program.
      devices: The number of devices of the mesh; by default all devices.
      shard_state: Whether parameters and optimizer state are sharded over the devices.
      remat: Whether blocks are recomputed in the backward pass, which saves memory and takes time.
        On a CPU, XLA ignores this option.
      microbatches: The number of parts of a batch that run one after another, with statistics of
        the whole batch. A larger number needs less memory and more time.
      evaluations: Evaluations on ImageNet after training: crops (42 of an image, at five scales),
        whole (whole images) or center (one crop).
      workers: The number of processes that read and crop ImageNet; by default one for each core.
      coordinator: HOST:PORT of process 0, for several processes; give auto on TPU pods and Slurm.
      processes: The number of processes; auto finds this number.
      process: The number of this process, counted from 0; auto finds this number.
      heartbeat: If a process is silent for this number of seconds, all other processes end.
      axis_type: Whether XLA (auto) or JAX (explicit) propagates shardings.
      compile_for: Chips that need not be attached, such as v5e:16x16 or h100. The script only
        compiles a training step for these chips, and prints memory and traffic.
      init_from: A run of the same network. Training starts from the run's newest weights.
      evaluate_only: Whether to train nothing, and only evaluate the newest checkpoint of each seed
        in OUT. Give the preset and the normalization of the run; other settings are read from OUT.
      log_every: The number of steps between two lines with the loss in seed-0/steps.jsonl.
      profile: Whether to write a trace of ten steps, for Perfetto or TensorBoard, to OUT/profile.
      out: The folder of the run, local or in a bucket (gs://BUCKET/RUN).
    """

    data_dir: Location | None = None
    fake_data: bool = False
    seeds: Seeds = 1
    vmap_seeds: Literal["auto", "yes", "no"] = "auto"
    devices: Positive | None = None
    shard_state: bool = False
    remat: bool = False
    microbatches: Positive = 1
    evaluations: tuple[Evaluation, ...] = ()
    workers: Natural | None = None
    coordinator: str | None = None
    processes: Positive | None = None
    process: Natural | None = None
    heartbeat: Positive = 30
    axis_type: Literal["auto", "explicit"] = "auto"
    compile_for: str | None = None
    init_from: Location | None = None
    evaluate_only: bool = False
    log_every: Positive | None = None
    profile: bool = False
    out: Location = Path("out/train")


def main(recipe: Recipe, options: Options) -> None:
    """Train a network by a recipe for every seed, write OUT and print the accuracies."""
    cli.check_start()
    check(recipe, options)
    from jax.sharding import AxisType

    from experiments.data import datasets, stand_ins
    from experiments.pages import train as train_page
    from experiments.training import compile_for, processes, run
    from experiments.training.introduction import introduce
    from experiments.training.loop import Extras
    from experiments.training.trainer import Layout, Trainer, mesh_of

    only = options.evaluate_only
    recipe = run.recipe_to_evaluate(options.out, recipe) if only else recipe
    groups = run.seed_groups(recipe, options.seeds, options.vmap_seeds)
    workers = len(os.sched_getaffinity(0)) if options.workers is None else options.workers
    vmapped, parts = len(groups[0]) > 1, options.microbatches
    layout = Layout(options.shard_state, options.remat, vmapped, workers, parts)
    placement = {"devices": options.devices, "axis_type": AxisType[options.axis_type.capitalize()]}
    if options.compile_for is not None:
        compile_for.show(recipe, options.compile_for, layout, groups[0], **placement)
        return
    extras = Extras(options.evaluations, options.profile, options.log_every)
    several = options.coordinator, options.processes, options.process
    processes.init_distributed(*several, options.heartbeat)
    cli.compiled_in(datasets.cache_folder() / "compiled")
    data = stand_ins.load(recipe, options.data_dir, fake=options.fake_data)
    mesh, is_main = mesh_of(**placement), processes.is_main_process()
    trainer = Trainer(recipe, data, mesh, layout)
    folder = files.in_use(options.out, __file__) if is_main else nullcontext(lambda: None)
    with folder as check_folder, processes.together():
        out = options.out
        init = run.prepare(trainer, data, groups, out, options.init_from, evaluate_only=only)
        introduce(trainer, mesh, groups, data.note, options.evaluations)
        if only:
            run.show_evaluations(trainer, groups, out, extras.evaluations)
            return
        results = run.train_groups(trainer, groups, out, extras, init)
        check_folder()
        if is_main:
            results |= cli.provenance(__file__) | {"note": data.note, "mesh": trainer.placement}
            train_page.report(results, out)


def check(recipe: Recipe, options: Options) -> None:
    """Raise an error that names the option if a recipe's value or an option is out of range."""
    recipes.check(recipe)
    check_ranges(options)
    checks.check_processes(options.coordinator, options.processes, options.process)
    checks.check_evaluations(recipe, options.evaluations)
    checks.check_trained(options.out, needed=options.evaluate_only)
    from experiments.training.optimizers import check_optimizer  # this module imports JAX

    check_optimizer(recipe)


@dataclass(frozen=True)
class Arguments:
    """The command-line arguments that follow the name of the preset."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    run: tyro.conf.OmitArgPrefixes[Options] = field(default_factory=Options)


if __name__ == "__main__":
    with cli.ending("start again to resume from the last checkpoint, if there is one"):
        recipes.check_preset(sys.argv[1:])
        presets = {name: (text, Arguments(recipe)) for name, (text, recipe) in PRESETS.items()}
        arguments = tyro.extras.overridable_config_cli(presets, description=__doc__)
        main(arguments.recipe, arguments.run)
