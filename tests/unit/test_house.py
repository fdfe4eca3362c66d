"""The rooms of the house: imports point downward, sizes stay small, and the architecture page shows the graph."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from paths import ROOT

SCRIPT = ROOT / "scripts" / "house"


@pytest.fixture(scope="module")
def house():
    loader = SourceFileLoader("house", str(SCRIPT))
    module = module_from_spec(spec_from_loader("house", loader))
    sys.modules["house"] = module  # where its dataclasses look their types up
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # no housec next to the script
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    yield module
    del sys.modules["house"]


def test_the_page_shows_the_graph_and_every_limit_holds():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def make_house(house, **imports):
    rooms = {
        name: house.Room(name, "A room.", 1, frozenset(others.split()), frozenset()) for name, others in imports.items()
    }
    return house.House("stark", rooms)


def test_a_floor_is_the_longest_chain_of_imports(house):
    made = make_house(house, top="middle ground", middle="ground", ground="", aside="ground")
    assert [[room.name for room in floor] for floor in made.floors()] == [["ground"], ["aside", "middle"], ["top"]]
    assert made.direct("top") == ["middle"]
    assert made.circles() == []


def test_a_circle_is_found_and_named(house):
    made = make_house(house, one="two", two="three", three="one", outside="one")
    assert made.circles() == ["one", "three", "two"]
    assert house.find_faults([made], {}) == ["stark: circle through one, three, two"]


def test_a_number_over_its_limit_is_a_fault(house):
    made = make_house(house, ground="")
    name = "lines of the largest module"
    assert house.find_faults([made], {name: (350, "stark.core")}) == []
    assert house.find_faults([made], {name: (351, "stark.core")}) == [f"{name}: 351 (stark.core); the limit is 350"]


def test_numbers_are_counted_in_the_source(house, tmp_path, monkeypatch):
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    (tmp_path / "stark" / "core").mkdir(parents=True)
    (tmp_path / "stark" / "core" / "__init__.py").write_text('"""Nouns."""\n')
    source = '"""Whether it works."""\n\n\ndef attempt():\n    """How it is tried."""\n    try:\n        return 1\n'
    (tmp_path / "stark" / "core" / "one.py").write_text(f"{source}    except (OSError, Exception):\n        return 2\n")
    (tmp_path / "stark" / "core" / "two.py").write_text(f"{source}    except OSError:\n        return 2\n")
    numbers = house.count_numbers(house.load_modules("stark"))
    assert [value for value, _ in numbers.values()] == [6.0, 9, 1000 / 19, 2, 4]
