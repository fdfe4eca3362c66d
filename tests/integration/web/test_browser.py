"""The page in a real browser: follows a run, opens every panel, works by keyboard, and runs no foreign text."""

from __future__ import annotations

import subprocess

import pytest
from playwright.sync_api import expect

from browser import open_browser, open_page, serve
from fakes import TASK
from page_store import write_run
from stark_process import command, environment
from waiting import stored, wait_until

TABS = ("Overview", "Changes", "Source", "Plan", "Log", "Timings", "Conversation")

# Text that would do something if it were markup, an attribute, a template, or the end of a script.
HOSTILE = (
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><svg onload='window.harmed = 1'>"
    "\"' onmouseover='window.harmed = 1' </script></textarea></style><iframe srcdoc='<script>parent.harmed=1</script>'>"
    "{{constructor.constructor('window.harmed=1')()}} ${window.harmed = 1} javascript:window.harmed=1 "
    "\u202e\u0000\u001b]0;x\u0007 ]]> --> <!-- \ud800 "
)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    write_run(folder, attempts=30, prompt_characters=100_000)
    with serve(folder) as found:
        yield found


@pytest.mark.parametrize(("width", "theme"), [(1600, "light"), (400, "dark")])
def test_every_panel_of_a_node_opens(browser, address, width, theme):
    with open_page(browser, address, viewport={"width": width, "height": 900}, color_scheme=theme) as page:
        assert page.locator("html").get_attribute("data-theme") == theme
        expect(page.locator("tbody tr")).to_have_count(31)
        page.locator("tbody tr[data-key='5']").click()
        expect(page.locator(".panel h2")).to_contain_text("Node 5")
        for tab in TABS:
            page.get_by_role("tab", name=tab).click()
            expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
            expect(page.locator(".tab-body")).not_to_be_empty()
            assert f"tab={tab}" in page.url
        prompt = page.locator(".message", has_text="Prompt: user").first
        assert "99,995 characters" in prompt.inner_text()
        assert len(prompt.locator("code").first.inner_text()) == 99_995
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.keyboard.press("Escape")
        expect(page.locator(".panel")).to_be_hidden()


def test_a_diff_is_shown_to_the_parent_and_to_any_node(browser, address):
    with open_page(browser, address) as page:
        page.locator("tbody tr[data-key='9']").click()
        page.get_by_role("tab", name="Changes").click()
        expect(page.locator(".diff .right.touched", has_text="changed 9")).to_be_visible()
        page.get_by_label("Compare with").select_option("0")
        expect(page.locator(".panel .sheet-head")).to_contain_text("root → #9")
        assert "other=0" in page.url
        page.reload()  # the address is a link to what is seen
        expect(page.locator(".panel .sheet-head")).to_contain_text("root → #9")


def test_the_keyboard_finds_and_moves(browser, address):
    with open_page(browser, address) as page:
        expect(page.locator("tbody tr")).to_have_count(31)
        page.keyboard.press("/")
        page.keyboard.type("17")
        page.keyboard.press("Enter")
        expect(page.locator(".panel h2")).to_contain_text("Node 17")
        parent = page.locator("tbody tr[data-key='17'] td").nth(1).inner_text().strip("#")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".panel h2")).to_contain_text("Root" if parent == "root" else f"Node {parent}")
        page.keyboard.press("7")
        expect(page.get_by_role("tab", name="Conversation")).to_have_attribute("aria-selected", "true")
        page.keyboard.press("b")
        expect(page.locator(".panel h2")).to_contain_text("best")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Keyboard")
        page.keyboard.press("Escape")
        before = page.locator("html").get_attribute("data-theme")
        page.keyboard.press("t")
        assert page.locator("html").get_attribute("data-theme") != before


def test_a_click_in_the_tree_opens_the_node_and_the_table_sorts_and_filters(browser, address):
    with open_page(browser, address, viewport={"width": 1500, "height": 1000}) as page:
        expect(page.locator("tbody tr")).to_have_count(31)
        place = page.evaluate("stark.app.view.tree.fit() ?? stark.app.view.tree.positionOf(3)")
        page.locator(".tree canvas").click(position={"x": place["x"] + 5, "y": place["y"]})
        expect(page.locator(".panel h2")).to_contain_text("Node 3")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="speed-up").click()
        speeds = [
            float(text.strip("×")) for text in page.locator("tbody td:nth-child(5)").all_inner_texts() if "×" in text
        ]
        assert speeds == sorted(speeds, reverse=True)
        page.get_by_label("Filter attempts").fill("error: expected")
        shown = page.locator("tbody tr").all_inner_texts()
        assert 0 < len(shown) < 31
        assert all("error: expected" in text for text in shown)


def test_a_long_table_is_drawn_as_far_as_its_reader_gets(browser, tmp_path):
    write_run(tmp_path, attempts=450)
    with serve(tmp_path) as address, open_page(browser, address, viewport={"width": 1600, "height": 900}) as page:
        expect(page.locator(".count")).to_have_text("451 rows")
        assert page.locator("tbody tr").count() == 100
        for _ in range(5):
            page.locator("tbody tr").last.scroll_into_view_if_needed()
            page.wait_for_timeout(200)
        expect(page.locator("tbody tr[data-key='450']")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(451)
        page.get_by_label("Filter attempts").fill("#449")
        expect(page.locator("tbody tr[data-key='449']")).to_be_visible()


def test_foreign_text_is_never_markup(browser, tmp_path):
    write_run(tmp_path, attempts=4, text=lambda text: HOSTILE + text)
    with serve(tmp_path) as address, open_page(browser, address) as page:
        expect(page.locator("tbody tr")).to_have_count(5)
        for number in range(5):
            page.goto(f"{address}#/run?store={tmp_path.name}&run=run&node={number}")
            expect(page.locator(".panel h2")).to_contain_text("Root" if number == 0 else f"Node {number}")
            for tab in TABS:
                page.get_by_role("tab", name=tab).click()
                expect(page.locator(".tab-body")).not_to_be_empty()
                page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
                assert page.locator(".panel script, .panel iframe, .panel img, .panel svg, .panel style").count() == 0
        page.keyboard.press("/")
        page.keyboard.type("script")
        expect(page.locator(".found button").first).to_be_visible()
        assert "<script>window.harmed = 1</script>" in page.locator(".found").inner_text()
        page.evaluate("stark.app.view.tree.select(1)")
        assert page.evaluate("window.harmed") is None
        assert page.locator("#app script, #app iframe, #app img").count() == 0


def test_the_page_follows_a_live_run(browser, tmp_path):
    held, folder = tmp_path / "held", tmp_path / "run"
    held.touch()
    (tmp_path / "task.py").write_text(TASK)
    words = ("--model", "fakes:HeldModel", "--evaluator", "fakes:HashEvaluator", "--attempts", 6, "--run", folder)
    more = ("--set", "evaluation.torch_compile=false", "--tokens", 1_000_000)
    run = subprocess.Popen(
        command("optimize", tmp_path / "task.py", *words, *more),
        env=environment(HELD_BY=held),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: run.poll() is not None or stored(folder, "nodes") >= 3)
        with serve(folder) as address, open_page(browser, address) as page:
            expect(page.locator(".state")).to_have_text("● live")
            expect(page.locator("tbody tr")).to_have_count(3)
            expect(page.locator(".flight")).to_contain_text("#3")
            held.unlink()
            expect(page.locator("tbody tr")).to_have_count(7)
            expect(page.locator(".state")).to_have_text("✓ done")
            expect(page.locator(".value", has_text="6 of 6")).to_be_visible()
    finally:
        held.unlink(missing_ok=True)
        run.wait()
    assert run.returncode in (0, 3, 4)


def test_a_folder_of_runs_is_a_list_and_one_click_opens_a_run(browser, tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name, attempts=3)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "stark.db").write_bytes(b"nothing" * 200)
    with serve(tmp_path) as address, open_page(browser, address) as page:
        expect(page.locator(".problem")).to_contain_text("broken")
        page.locator("tbody a", has_text="a task").first.click()
        expect(page.locator("h1")).to_have_text("a task")
        page.get_by_role("link", name="STARK").click()
        expect(page.locator(".count")).to_have_text("2 rows")
