"""The page of a training run, with numbers computed by hand."""

from experiments.pages import train


def test_the_speed_is_that_of_most_epochs_wherever_the_last_one_ran():
    run = [{"loss": 1.0, "accuracy": 0.5, "images_per_second": v} for v in (0, 1200, 1300, 1300, 7)]
    recipe = {"model": "mlp", "normalization": "unitized", "dataset": "digits"}
    results = {"recipe": recipe, "seeds": [run, run[:2]], "evaluations": [{}, {}]}
    _, head, rows = train.seed_table(results)
    assert [row[head.index("images/s")] for row in rows] == ["1,200", "600"]
