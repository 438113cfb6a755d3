"""Imports modules only at first use."""

import importlib
import sys
import types
from collections.abc import Callable, Mapping


def lazy_modules(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], types.ModuleType], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` for a package that imports `modules` at first use.

    `__dir__` lists `modules`, submodules of the package, and all public names that are not modules.
    Other modules that the package imports are not listed.
    """

    def getattr_(name: str) -> types.ModuleType:
        if name in modules:
            return importlib.import_module(modules[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def dir_() -> list[str]:
        values = vars(sys.modules[package]).items()
        own = {name for name, value in values if not isinstance(value, types.ModuleType)}
        own |= {name for name in vars(sys.modules[package]) if f"{package}.{name}" in sys.modules}
        own -= {"internal", "lazy_modules"}
        return sorted({name for name in own if not name.startswith("_")} | set(modules))

    return getattr_, dir_
