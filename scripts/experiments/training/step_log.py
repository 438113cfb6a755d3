"""Log the loss after every few steps, in addition to the metrics of every epoch."""

import json
from pathlib import Path

import numpy as np

from experiments import files, storage
from experiments.training.chunks import Chunk, steps_done
from experiments.training.optimizers import learning_rate
from experiments.training.processes import is_main_process
from experiments.training.run_folder import read_lines
from experiments.training.step import State
from experiments.training.trainer import Trainer


class StepLog:
    """A hook that adds a line to the file steps.jsonl of every seed after each chunk."""

    def __init__(self, trainer: Trainer, folders: list[Path], state: State):
        """Open the logs, and remove the lines of steps that follow the resumed `state`.

        Args:
          trainer: The trainer; it gives the number of steps in an epoch.
          folders: Folders of the seeds.
          state: State at the start of training.
        """
        self.trainer, self.paths = trainer, [folder / "steps.jsonl" for folder in folders]
        self.step = steps_done(state)
        self.totals = np.ravel(state.loss)
        for path in self.paths if is_main_process() else ():
            storage.make_folder(path.parent)
            complete = [line for line in read_lines(path) if line["step"] <= self.step]
            files.write(path, "".join(json.dumps(line) + "\n" for line in complete))

    def __call__(self, chunk: Chunk) -> None:
        totals = np.ravel(chunk.state.loss)
        losses = totals - (0 if self.step % self.trainer.steps == 0 else self.totals)
        losses, self.totals = losses / (chunk.step - self.step), totals
        self.step = chunk.step
        rate = learning_rate(self.trainer.recipe, self.trainer.steps, chunk.step - 1)
        line = {"step": chunk.step, "epoch": chunk.epoch + 1, "learning_rate": rate}
        for path, loss in zip(self.paths, losses.tolist(), strict=True):
            if is_main_process():
                files.append(path, json.dumps(line | {"loss": loss}) + "\n")
