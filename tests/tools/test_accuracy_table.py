"""The table of accuracies by normalization layer."""

from tools.accuracy_table import lines


def run(*accuracies):
    return {"seeds": [[{"accuracy": 0.1}, {"accuracy": a}] for a in accuracies]}


def test_differences_are_of_equal_seeds_with_intervals_for_the_whole_table():
    found = {"batch_norm": run(0.80, 0.84, 0.88), "unitized": run(0.82, 0.85, 0.91)}
    *_, first, second = lines(found)
    assert first == "| batch norm | 80.00, 84.00, 88.00 | 84.00 |  |"
    # The differences 2, 1 and 3 have the standard error 1/√3; Student's t at 95 % is 4.3027.
    assert second == "| unitized | 82.00, 85.00, 91.00 | 86.00 | +2.00 ± 0.58 (−0.48 to +4.48) |"
    *_, second, third = lines(found | {"bounded": run(0.79, 0.85, 0.85)})
    # A table of two differences has intervals at 97.5 %, where Student's t is 6.2053.
    assert second.endswith("+2.00 ± 0.58 (−1.58 to +5.58) |")
    assert third.startswith(
        "| unitized by Eq. 9, alpha in [0, 1] | 79.00, 85.00, 85.00 | 83.00 | −1.00"
    )
