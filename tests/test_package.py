"""Tests the distributions that users install, and the code in README and docs."""

import ast
import importlib
import inspect
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import tomllib
import types
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import jax
import pytest

import jaxnorm
from jaxnorm import _version
from jaxnorm.internal import lazy_modules
from tools.structure import PACKAGES

ROOT = Path(__file__).parents[1]
PINS = f"constraints-{'newest' if jax.__version_info__ >= (0, 12) else 'oldest'}.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
PAGES = sorted(p.name for p in (ROOT / "docs").glob("*.md") if "```python" in p.read_text())


def run(*command, **options):
    finished = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def built(source, folder, *targets):
    """The distributions that hatchling makes from a folder of sources."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), *targets, cwd=source)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    wheel, sdist = built(ROOT, tmp_path_factory.mktemp("dist"))
    assert (wheel.suffix, sdist.suffixes[-2:]) == (".whl", [".tar", ".gz"])
    return wheel, sdist


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_holds_the_three_packages(distributions):
    names = contents(distributions[0])
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == set(PACKAGES)
    assert {f"{package}/py.typed" for package in packages} <= set(names)


def test_the_sdist_makes_the_same_wheel(distributions, tmp_path):
    wheel, sdist = distributions
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (again,) = built(source, tmp_path / "dist", "-t", "wheel")
    assert contents(again) == contents(wheel)


def test_the_readme_is_the_long_description(distributions):
    metadata = contents(distributions[0])["jaxnorm-0.1.0.dist-info/METADATA"].decode()
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert metadata.endswith("\n\n" + (ROOT / "README.md").read_text())
    assert "\nProject-URL: " not in metadata


def test_an_address_completes_the_links_of_the_readme(tmp_path):
    """An address in `pyproject.toml` is in the metadata, and at the beginning of links."""
    for name in ("README.md", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(
        text.replace('address = ""', 'address = "https://example.org/files/"')
    )
    (wheel,) = built(tmp_path, tmp_path / "dist", "-t", "wheel")
    metadata = contents(wheel)["jaxnorm-0.1.0.dist-info/METADATA"].decode()
    assert "Project-URL: Repository, https://example.org/files/" in metadata
    assert "](https://example.org/files/docs/layers.md)" in metadata
    assert "](https://arxiv.org/abs/2001.02814)" in metadata
    assert not re.search(r"\]\((?!https://)", metadata)


OPTIONAL = {"h5py", "ott"}  # only the extras keras and bench need these packages


def imported(package):
    """The names of all top-level packages and modules that a package imports."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_dependencies_are_what_the_packages_import():
    modules = {name for package in PACKAGES for name in imported(package)}
    modules -= {*sys.stdlib_module_names, *PACKAGES, *OPTIONAL}
    homes = packages_distributions()
    needed = {name for module in modules for name in homes[module] if "plugin" not in name}
    assert {re.split("[>=]", line)[0] for line in PROJECT["dependencies"]} == needed


# These environment variables include neither PYTHONPATH nor settings of JAX.
ALONE = {
    name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTHONPATH"))
}


def installed(wheel, folder):
    """The interpreter of a new environment that has only a wheel and its dependencies."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python)
    install = (*pip, "install", "--quiet", "--constraint", str(ROOT / PINS))
    finished = subprocess.run([*install, str(wheel)], capture_output=True, text=True, env=ALONE)
    if finished.returncode and re.search("connection|resolve|network", finished.stderr, re.I):
        pytest.skip("the package index cannot be reached")
    assert finished.returncode == 0, finished.stderr
    return python


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_the_wheel_alone_runs_the_readme_in_three_times_the_time_of_flax(distributions, tmp_path):
    """CPU times are divided by the time in which Flax creates a ResNet-8, as machines differ.

    Both programs spend most of their time on compilation.
    """

    def cpu_time(program):
        start = cpu_seconds()
        assert run(python, "-c", program, cwd=tmp_path, env=ALONE)
        return cpu_seconds() - start

    python = installed(distributions[0], tmp_path / "fresh")
    where = "import geometry, jaxnorm, pruning; print(geometry.__file__)"
    assert str(tmp_path / "fresh") in run(python, "-c", where, cwd=tmp_path, env=ALONE)
    create = "jaxnorm.models.CifarResNet(8, classes=10, rngs=nnx.Rngs(0))"
    unit = cpu_time(f"import jaxnorm; from flax import nnx; print({create})")
    for language, snippet in README:
        if language == "python":
            assert cpu_time(snippet) < 3 * unit


def test_the_version_is_one_and_its_changes_are_dated():
    assert jaxnorm.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    entry = rf"^## \[{re.escape(PROJECT['version'])}\] - 20\d\d-\d\d-\d\d$"
    assert re.search(entry, (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_an_older_jax_is_named_in_one_sentence():
    oldest = ".".join(map(str, _version.OLDEST_JAX))
    assert f"jax>={oldest}" in PROJECT["dependencies"]
    code = "import jax; jax.__version__, jax.__version_info__ = '0.4.38', (0, 4, 38)\n"
    for package in PACKAGES:
        code += f"try: import {package}\nexcept ImportError as error: print(error)\n"
    expected = f"needs JAX {oldest} or later; 0.4.38 is installed: pip install --upgrade jax flax"
    said = run(sys.executable, "-c", code, cwd=ROOT).splitlines()
    assert [line.endswith(expected) for line in said] == len(PACKAGES) * [True]


def test_pythons_are_those_that_the_project_names():
    minors = [c.rpartition(" 3.")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert f"3.{sys.version_info.minor}" in [f"3.{minor}" for minor in minors]


def test_importing_jaxnorm_loads_nothing_slow_that_a_user_may_not_need():
    slow = ["scipy.stats", "scipy.optimize", "orbax", "safetensors", "tensorflow_datasets"]
    slow += ["pruning", "geometry"]
    code = "import sys, jaxnorm; print([m for m in ('flax', 'optax') if m in sys.modules])\n"
    for use in ("", ".linen", ".models", ".nnx", ".shift"):
        code += f"jaxnorm{use}; print([m for m in {slow} if m in sys.modules])\n"
    assert run(sys.executable, "-c", code, cwd=ROOT) == 6 * "[]\n"


def test_importing_a_package_loads_no_scipy():
    code = "import sys\n"
    for package in ("geometry", "pruning"):
        code += f"import {package}; print([m for m in sys.modules if m.startswith('scipy.')])\n"
    assert run(sys.executable, "-c", code, cwd=ROOT) == 2 * "[]\n"


def seconds(code):
    start = time.perf_counter()
    run(sys.executable, "-c", code, cwd=ROOT)
    return time.perf_counter() - start


@pytest.mark.slow
@pytest.mark.parametrize("ours", ["jaxnorm", "jaxnorm.nnx"])
def test_importing_jaxnorm_takes_at_most_1_3_times_as_long_as_flax(ours):
    """The two imports alternate, so that both have the same load of the machine."""
    pairs = [(seconds(f"import {ours}"), seconds("import flax, optax")) for _ in range(10)]
    assert statistics.median(mine / flax for mine, flax in pairs) <= 1.3


def test_every_snippet_of_the_readme_runs(tmp_path):
    assert {language for language, _ in README} == {"python", "sh"}
    snippets = [snippet for language, snippet in README if language == "python"]
    code = "import sys\nfor snippet in sys.argv[1:]: exec(snippet, {}); print('---')"
    found = run(sys.executable, "-W", "error", "-c", code, *snippets, cwd=tmp_path)
    expected = ("distance of the outputs: 0.", "parameters before and after: 7", "misprint")
    for part, text in zip(found.split("---\n"), (*expected, ""), strict=True):
        assert text in part


def test_the_readme_is_short():
    text = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(text.split()) <= 450


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


def pins(name):
    """The versions in a file of constraints, by package."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("-c "))


def test_both_ends_pin_the_same_packages_and_what_they_share_is_pinned_once():
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints-newest.txt")
    assert oldest.keys() == newest.keys()
    assert not pins("constraints.txt").keys() & oldest.keys()
    assert all(oldest[name] != newest[name] for name in oldest)
    assert pins(PINS)["jax"] == jax.__version__


def test_the_table_of_versions_is_that_of_the_pins():
    rows = re.findall(
        r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|",
        (ROOT / "docs/get_started.md").read_text(),
        re.M,
    )
    ends = [pins(f"constraints-{end}.txt") for end in ("oldest", "newest")]
    assert rows == [tuple(end[n] for n in ("jax", "flax", "numpy", "scipy")) for end in ends]


@pytest.mark.parametrize(
    ("environment", "pins"), [({"JAX": "oldest"}, "oldest"), ({"JAX": "newest"}, "newest")]
)
def test_make_takes_the_pins_of_the_jax_that_is_asked_for(environment, pins):
    python = f"PYTHON={sys.executable}"
    shown = run("make", "--dry-run", "--always-make", python, "test", cwd=ROOT,
                env=os.environ | environment)  # fmt: skip
    assert f"PIP_CONSTRAINT=constraints-{pins}.txt " in shown
    assert f"-{pins}" in shown.split("touch")[-1].splitlines()[0]


@pytest.mark.parametrize(
    "name",
    [
        "jaxnorm",
        "jaxnorm.linen",
        "jaxnorm.nnx",
        "jaxnorm.shift",
        "jaxnorm.models",
        "pruning",
        "pruning.channels",
        "geometry",
        "geometry.cells",
        "geometry.filters",
        "geometry.claims",
    ],
)
def test_a_completion_list_shows_what_users_import(name):
    """A public name is neither imported from elsewhere, such as jnp, nor internal."""
    module = importlib.import_module(name)
    shown = getattr(module, "__all__", dir(module))
    values = {shown_name: getattr(module, shown_name) for shown_name in shown}
    homes = {
        shown_name: value.__name__ if inspect.ismodule(value) else value.__module__
        for shown_name, value in values.items()
        if inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value)
    }
    ours = (*PACKAGES, "jaxtyping")  # the tests' import hook adds the name jaxtyping to all modules
    foreign = [
        shown_name
        for shown_name, home in homes.items()
        if home.split(".")[0] not in ours and not shown_name.startswith("_")
    ]
    assert foreign == []
    assert not {"internal", "lazy_modules"} & set(shown)


def test_the_other_packages_are_lazy_names_of_this_one():
    code = (
        "import sys, jaxnorm; assert 'pruning' not in sys.modules; import pruning, geometry; "
        "assert (jaxnorm.pruning, jaxnorm.geometry) == (pruning, geometry)"
    )
    run(sys.executable, "-c", code)


def test_modules_that_are_imported_at_first_use_are_listed_before(monkeypatch):
    made = types.ModuleType("made")
    vars(made).update(number=1, _hidden=2, system=sys, internal=3)
    monkeypatch.setitem(sys.modules, "made", made)
    find, names = lazy_modules("made", {"late": "colorsys", "later": "no.such.module"})
    assert names() == ["late", "later", "number"]
    assert find("late").__name__ == "colorsys"
    with pytest.raises(AttributeError, match=r"^module 'made' has no attribute 'never'$"):
        find("never")
