# %% [markdown]
# # Prune a language model
#
# This notebook trains a small language model of bytes for about a minute on the sources of
# Python's standard library. Then the notebook removes units until at most 75 % and 50 % of
# the parameters remain, and repairs kernels by least squares. The page on language models
# shows the results of a longer training. Run the notebook in a checkout of the repository,
# because it calls commands of the repository.

# %%
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxnorm

sys.path.insert(0, str(Path(jaxnorm.__file__).parents[1] / "scripts"))

from experiments.language import choice, python_text, training


def command(name, *arguments):
    path = Path(sys.path[0], name)
    subprocess.run(
        [sys.executable, path, *arguments],
        check=True,
        capture_output=True,
    )


# %% [markdown]
# ## Train
#
# The folder `small/model` has the format of Hugging Face, so `transformers` can load the
# model.

# %%
command(
    "train_lm.py",
    "--steps",
    "150",
    "--batch-size",
    "8",
    "--length",
    "64",
    "--out",
    "small",
)
trained = json.loads(Path("small/results.json").read_text())
print(f"{trained['parameters']:,} parameters")
for step, loss in trained["losses"][:: len(trained["losses"]) // 3]:
    print(f"step {step:3d}: {loss:.2f} nats a byte")

# %% [markdown]
# ## Prune and repair
#
# Tokens are bytes. A part of the training text is divided: nine tenths are for pruning,
# and on the last tenth the perplexity is measured.

# %%
text, _ = python_text.load()
np.save("text.npy", text[:200_000].astype(np.int32))
found = {}
for share in (0.75, 0.5):
    out = f"out/{share}"
    options = [
        "--keep",
        str(share),
        "--text",
        "text.npy",
        "--length",
        "64",
        "--round-to",
        "8",
    ]
    command("prune_lm.py", "small/model", *options, "--out", out)
    found[share] = json.loads(Path(out, "results.json").read_text())
    counts = found[share]["counts"]["pruned"]
    size = found[share]["parameters"]["pruned"]
    print(
        f"{share:.0%}: {size:,} parameters, "
        f"{counts['groups']} key-value heads, "
        f"{counts['intermediate']} units"
    )

# %% [markdown]
# ## The perplexity of a held-out byte
#
# The rows `cut` show pruned models without a repair. In the rows `repaired`, the output
# projections of attention and of perceptrons have new weights.

# %%
rows = {"whole": found[0.75]["perplexity"]["whole"]}
for share, results in found.items():
    rows |= {
        f"{share:.0%} {name}": results["perplexity"][name]
        for name in ("cut", "repaired")
    }
longest = max(row["value"] for row in rows.values())
for name, row in rows.items():
    bar = "█" * round(40 * row["value"] / longest)
    measured = f"{row['value']:6.2f} ± {row['stderr']:.2f}"
    print(f"{name:13s} {measured} {bar}")

# %% [markdown]
# ## Generate
#
# Each new byte is the most likely byte. In 150 steps, a model learns little more than the
# appearance of Python code.


# %%
def generate(folder, prompt, count=40):
    _, model = choice.read_model(Path(folder))
    params = {
        name: jnp.asarray(model.read(name)) for name in model.tensors
    }
    forward = jax.jit(partial(training.forward, model.architecture))
    tokens = np.zeros((1, len(prompt) + count), np.int32)
    tokens[0, : len(prompt)] = list(prompt)
    for at in range(
        len(prompt), tokens.size
    ):  # no position sees the zeros behind it
        tokens[0, at] = forward(params, jnp.asarray(tokens))[
            0, at - 1
        ].argmax()
    return bytes(tokens[0].tolist()).decode(errors="replace")


for folder in ("small/model", "out/0.75", "out/0.5"):
    print(
        f"{folder:12s} {generate(folder, b'    def __init__(self, ')!r}"
    )
