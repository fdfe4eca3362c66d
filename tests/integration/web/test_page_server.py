"""The server as a stranger meets it: other hosts, other methods, no token, other stores, and readers that stall."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from browser import serve
from page_store import make_node, make_record, write_run
from stark.store.open import open_store
from stark_process import stark_command

ROUTES = (
    "/",
    "/static/app.js",
    "/static/nothing",
    "/api/index",
    "/api/run?store=run&run=run",
    "/api/node",
    "/api/events",
    "/nothing",
)
METHODS = ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("store") / "run"
    write_run(found, attempts=5)
    return found


@pytest.fixture(scope="module")
def address(folder):
    with serve(folder) as found:
        yield found


def ask(address, path="/", method="GET", host=None, **headers):
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for value in [place.netloc] if host is None else host:
        connection.putheader("Host", value)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = b"" if path == "/api/events" and answer.status == 200 else answer.read()
    connection.close()
    return answer, body


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_refuses_other_hosts_and_methods(address, path):
    port = urlsplit(address).port
    foreign = ["evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}", ""]
    for host in foreign:
        assert ask(address, path, host=[host])[0].status == 421, host
    assert ask(address, path, host=[])[0].status in (400, 421)
    assert ask(address, path, host=[f"127.0.0.1:{port}", "evil.example"])[0].status in (400, 421)
    for method in METHODS:
        answer, _ = ask(address, path, method)
        assert answer.status == 405, method
        assert answer.getheader("allow") == "GET"


@pytest.mark.parametrize("path", ROUTES)
def test_every_answer_has_the_strict_headers(address, path):
    answer, _ = ask(address, path)
    policy = answer.getheader("content-security-policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.getheader("x-content-type-options") == "nosniff"
    assert answer.getheader("cross-origin-resource-policy") == "same-origin"


@pytest.mark.parametrize("store", ["../run", "/etc", "..", "run/../run", "\x00", "%2e%2e"])
def test_only_stores_that_were_found_can_be_named(address, store):
    path = f"/api/run?run=run&store={store}".replace("\x00", "%00")
    answer, body = ask(address, path)
    assert answer.status == 404
    assert "There is no store" in json.loads(body)["error"]


@pytest.mark.parametrize("name", ["../assets.py", "..%2f..%2fassets.py", "vendor/vendor.json", "/etc/passwd"])
def test_only_listed_files_are_served(address, name):
    assert ask(address, f"/static/{name}")[0].status == 404


@pytest.mark.parametrize("node", ["-1", "x", "1e9", "9" * 30, "99"])
def test_a_wrong_number_is_refused_with_what_to_do(address, node):
    answer, body = ask(address, f"/api/node?store=run&run=run&node={node}")
    assert answer.status == 404
    assert json.loads(body)["hint"]


def test_a_token_is_asked_for_and_leaves_the_address(folder):
    token = "abcdefgh12345678"
    with serve(folder, STARK_VIEW_TOKEN=token) as address:
        plain = address.partition("?")[0]
        assert ask(plain)[0].status == 401
        assert ask(plain, "/api/index")[0].status == 401
        assert ask(plain, "/?token=wrong")[0].status == 401
        answer, _ = ask(plain, f"/?token={token}")
        assert answer.status == 303
        assert answer.getheader("location") == "/"
        cookie = answer.getheader("set-cookie")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert token not in cookie
        assert ask(plain, "/api/index", Cookie=cookie.partition(";")[0])[0].status == 200


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--host", "192.0.2.1"), ("--token", "short")])
def test_an_address_that_others_reach_needs_a_good_token(folder, words):
    done = stark_command("view", folder, *words)
    assert done.returncode == 2
    assert "STARK_VIEW_TOKEN" in done.stdout + done.stderr


def test_a_folder_without_a_run_is_refused(tmp_path):
    done = stark_command("view", tmp_path)
    assert done.returncode == 2
    assert "no run" in done.stdout + done.stderr


def test_readers_that_stall_hold_up_neither_the_writer_nor_other_readers(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, attempts=300, prompt_characters=10)
    with serve(folder) as address, closing(open_store(folder, write=True)) as store:
        place = urlsplit(address)
        stalled = [socket.create_connection((place.hostname, place.port)) for _ in range(50)]
        for number, each in enumerate(stalled):  # they ask, and never read what comes
            path = "/api/events?store=run" if number % 2 else "/api/run?store=run&run=run"
            each.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        time.sleep(0.5)
        record = make_record()
        for number in range(301, 306):
            store.finish(record.id, make_node(number, 0, random.Random(number)))
        document = json.loads(ask(address, "/api/run?store=run&run=run&known=301")[1])
        assert [row["id"] for row in document["nodes"]] == [301, 302, 303, 304, 305]
        for each in stalled:
            each.close()


def test_the_server_says_when_a_store_has_changed(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, attempts=2)
    with serve(folder) as address, closing(open_store(folder, write=True)) as store:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(f"GET /api/events?store=run HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            events = client.makefile("rb")
            first = read_event(events)
            store.finish("run", make_node(3, 0, random.Random(3)))
            assert read_event(events) > first


def read_event(stream) -> int:
    """The number of the next change."""
    while True:
        line = stream.readline()
        if line.startswith(b"data: "):
            return int(line.removeprefix(b"data: "))
