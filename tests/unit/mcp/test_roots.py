"""Paths of clients stay in their roots, however they are written."""

from __future__ import annotations

import os

import pytest

from stark.core.errors import UsageError
from stark.mcp.roots import MAX_SOURCE_BYTES, Roots


@pytest.fixture
def places(tmp_path):
    """A root with a task, and a secret next to it."""
    root = tmp_path / "my root"
    (root / "sub").mkdir(parents=True)
    (root / "task.py").write_text("task")
    (tmp_path / "my root 2").mkdir()
    (tmp_path / "secret.py").write_text("secret")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "out").symlink_to(tmp_path)
    (root / "inner.py").symlink_to(root / "task.py")
    (root / "loop.py").symlink_to(root / "loop.py")
    return root


def roots_of(*folders):
    return Roots(tuple(folders))


@pytest.mark.parametrize("name", ["task.py", "./task.py", "sub/../task.py", "inner.py", "out/my root/task.py"])
def test_a_path_in_the_root_is_its_real_path(places, name):
    assert roots_of(places).source_file(name) == places / "task.py"


def test_absolute_paths_and_uris_in_the_root(places):
    roots = roots_of(places)
    for text in (str(places / "task.py"), (places / "task.py").as_uri(), f"file:{places}/task.py".replace(" ", "%20")):
        assert roots.source_file(text) == places / "task.py"
    assert roots.source_file((places / "task.py").as_uri().replace("file://", "FILE://localhost")).name == "task.py"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.py",
        "sub/../../secret.py",
        "link.py",
        "out/secret.py",
        "../my root 2/x.py",
        "/etc/passwd",
        "/proc/self/environ",
        "//etc/passwd",
        "file:///etc/passwd",
        "file:///%65tc/passwd",
        "FILE:///etc/passwd",
        "file://localhost/etc/passwd",
        "file://elsewhere/etc/passwd",
        "file:///etc/passwd?x#y",
        "file:task.py",
        "file://",
        "",
        "task.py\0",
        "file:///etc%00/passwd",
        "http://localhost/task.py",
        "~/secret.py",
    ],
)
def test_a_path_out_of_the_root_is_refused(places, name):
    with pytest.raises(UsageError) as refused:
        roots_of(places).source_file(name)
    assert "secret\n" not in str(refused.value)


@pytest.mark.parametrize("dots", ["..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..%2f.", "%c0%ae%c0%ae"])
def test_dots_in_a_uri_lead_nowhere_else(places, dots):
    with pytest.raises(UsageError):
        roots_of(places).source_file(f"{places.as_uri()}/{dots}/secret.py")


def test_a_folder_a_pipe_and_a_large_file_are_no_source(places):
    os.mkfifo(places / "pipe.py")
    (places / "large.py").write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
    for name in ("sub", "pipe.py", "large.py", "loop.py", "x" * 5000, "missing.py"):
        with pytest.raises(UsageError):
            roots_of(places).source_file(name)


def test_a_new_file_is_new_and_has_its_suffix(places, tmp_path):
    roots = roots_of(places)
    assert roots.new_file("sub/best.py", ".py") == places / "sub" / "best.py"
    (places / "nowhere.py").symlink_to(tmp_path / "made-later.py")
    for name in ("task.py", "best.txt", "no-folder/best.py", "../best.py", "out/best.py", "nowhere.py", ".py"):
        with pytest.raises(UsageError):
            roots.new_file(name, ".py")


def test_runs_of_a_root_whose_folder_leads_out_are_refused(places, tmp_path):
    (places / "runs").symlink_to(tmp_path)
    with pytest.raises(UsageError):
        roots_of(places).runs_folder()


def test_relative_paths_mean_the_first_root_that_has_them(places, tmp_path):
    other = tmp_path / "my root 2"
    (other / "other.py").write_text("other")
    roots = roots_of(places, other)
    assert roots.source_file("other.py") == other / "other.py"
    assert roots.new_file("new.py", ".py") == places / "new.py"


def test_the_client_names_the_roots_or_the_server_has_one(places, tmp_path):
    assert Roots.of([], places).folders == (places,)
    assert Roots.of(["http://x/y", "file://elsewhere/x"], places).folders == (places,)
    assert Roots.of([places.as_uri(), places.as_uri()], tmp_path).folders == (places,)


def test_roots_of_a_client_on_the_network_count_only_in_the_served_folder(places, tmp_path):
    assert Roots.of([tmp_path.as_uri(), places.as_uri()], places, within=places).folders == (places,)
    with pytest.raises(UsageError):
        Roots.of(["file:///"], places, within=places)
    with pytest.raises(UsageError):
        Roots.of([f"{places.as_uri()}/out"], places, within=places)
