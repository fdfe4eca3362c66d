"""The package `stark` itself."""

from __future__ import annotations

from importlib.metadata import version

import pytest

import stark


def test_the_version_is_that_of_the_distribution():
    assert stark.__version__ == version("stark-kernels")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="optimise"):
        stark.optimise  # noqa: B018
