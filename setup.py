"""The native extension; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

sources = sorted(
    str(path) for folder in ("host", "ascend/host", "bindings") for path in Path("csrc", folder).glob("*.cpp")
)

setup(
    ext_modules=[
        Pybind11Extension(
            "asap_ray._native",
            sources,
            depends=[str(path) for path in Path("csrc").rglob("*.hpp")],
            include_dirs=["csrc/include"],
            cxx_std=20,
            extra_compile_args=["-O3", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": build_ext},
)
