"""What a person installs, and what the README shows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxnorm

ROOT = Path(__file__).parents[1]
PAGES = sorted(p.name for p in (ROOT / "docs").glob("*.md") if "```python" in p.read_text())


def run(*command, **options):
    finished = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(folder), str(ROOT)),
    )
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_the_three_packages(wheel):
    names = run(sys.executable, "-m", "zipfile", "--list", str(wheel)).split()
    packages = {name.split("/")[0] for name in names if "/" in name and ".dist-info" not in name}
    assert packages == {"jaxnorm", "pruning", "geometry"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)


@pytest.mark.slow
def test_the_wheel_alone_imports_the_three_packages(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "fresh"))
    python = tmp_path / "fresh" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    install = (*pip, "install", "--quiet", "--no-compile", "--constraint")
    finished = subprocess.run(
        [*install, str(ROOT / "constraints.txt"), str(wheel)], capture_output=True, text=True
    )
    if finished.returncode and re.search("connection|resolve|network", finished.stderr, re.I):
        pytest.skip("the package index cannot be reached")
    assert finished.returncode == 0, finished.stderr
    where = "import geometry, jaxnorm, pruning; print(geometry.__file__)"
    assert str(tmp_path / "fresh") in run(str(python), "-c", where, cwd=tmp_path)


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert jaxnorm.__version__ == project["version"]


@pytest.mark.parametrize("use", ["", ".linen", ".models", ".nnx", ".shift"])
def test_importing_jaxnorm_loads_nothing_slow_that_a_user_may_not_need(use):
    slow = ["scipy.stats", "scipy.optimize", "orbax", "safetensors", "tensorflow_datasets"]
    slow += ["pruning", "geometry", *([] if use else ["flax", "optax"])]
    code = f"import sys, jaxnorm; jaxnorm{use}; print([m for m in {slow} if m in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=ROOT) == "[]\n"


def test_every_snippet_of_the_readme_runs(tmp_path):
    snippets = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert {language for language, _ in snippets} == {"python", "sh"}
    for language, snippet in snippets:
        if language == "python":
            output = run(sys.executable, "-W", "error", "-c", snippet, cwd=tmp_path)
            assert re.search(r"Spearman 0\.\d\d, Gaussian filters predict 0\.\d\d", output)
        else:
            for line in snippet.splitlines():
                assert run(*line.split("#")[0].split(), "--dry-run", cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_snippets_of_a_page_run_one_after_the_other(name, tmp_path):
    page = (ROOT / "docs" / name).read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.S)
    assert snippets
    run(sys.executable, "-W", "error", "-c", "\n".join(snippets), cwd=tmp_path)


def test_make_lists_its_targets():
    listed = run("make", cwd=ROOT)
    for target in ("reproduce", "test", "lint", "docs", "bench", "clean"):
        assert f"make {target} " in listed
