"""The picture of README shows the numbers of the table of repairs."""

import re

from tools import readme_picture
from tools.readme_picture import DOCS


def test_the_picture_is_that_of_the_committed_numbers():
    assert readme_picture.draw() == (DOCS / "repair.svg").read_text(encoding="utf-8")


def test_the_curves_are_the_table_s_means():
    page = (DOCS / "repair.md").read_text(encoding="utf-8")
    row = re.search(r"\| `least_squares` \| (81.*)\n", page)
    assert row
    printed = [float(cell.split()[0]) for cell in row[1].split(" | ")[::2]]
    means = [100 * value.mean for _, value in readme_picture.curves()["least squares"]]
    assert [round(mean, 1) for mean in means] == printed
