"""Operators of torch-npu, as documented, against the CPU's function each stands for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from asap_ray.backends.ascend import operators
from asap_ray.errors import ConfigError
from tests.ascend import documented
from tests.ascend.operator_cases import CASES


@pytest.fixture(scope="module", autouse=True)
def _documented() -> Iterator[None]:
    library = documented.define()
    yield
    library._destroy()


@pytest.mark.parametrize("name", CASES)
def test_an_operator_equals_its_reference(name: str) -> None:
    """With the arguments that we give it, by its documented formula."""
    case = CASES[name]

    case.is_met(case.ours(*case.tensors()))


def test_counts_of_another_type_are_refused() -> None:
    """The operator would read them as half as many."""
    with pytest.raises(ConfigError, match=r"num_rows_E is torch\.int32"):
        operators.grouped_experts(torch.ones(1, 2), torch.tensor([1]).int(), torch.ones(1, 2, 4), torch.ones(1, 2, 2))


@pytest.mark.parametrize("name", operators.REFERENCES)
def test_every_operator_names_the_function_it_stands_for(name: str) -> None:
    """Both exist."""
    module, _, path = operators.REFERENCES[name].partition(".models.")
    file, *attributes = path.split(".")
    found = importlib.import_module(f"{module}.models.{file}")
    for attribute in attributes:
        found = getattr(found, attribute)

    assert callable(getattr(operators, name))
    assert callable(found)
