from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paths import ROOT
from stark.agents.anchors import BEGIN, END, code_lines, find_violations, measure_outside_share, remove_markers

names = st.sampled_from(["alpha", "beta", "rows", "tile", "out", "x1"])
numbers = st.integers(0, 99).map(str)
python_lines = st.one_of(
    st.builds("{} = {}".format, names, numbers),
    st.builds('{} = "// no comment # {}"'.format, names, names),
    st.builds("{} = f'{{{}}} /* text'  # why {}".format, names, names, names),
    st.builds("if {}:\n    {} = {}  # nested".format, names, names, numbers),
    st.builds("print({})".format, names),
    st.just("# a remark"),
    st.just(""),
)
cpp_lines = st.one_of(
    st.builds("    {}[{}] += {}.5f;".format, names, names, numbers),
    st.builds('    printf("/* {} // no comment */", {});  // show'.format, names, names),
    st.builds("    char {} = '\"';".format, names),
    st.builds("    int {} = 1'000; /* big */".format, names),
    st.builds("    kernel<<<{}, {}>>>({});".format, names, numbers, names),
    st.builds("    #pragma unroll {}".format, numbers),
    st.just("    /* two\n       lines */"),
    st.just(""),
)


@st.composite
def sources(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """A source in pieces: Python lines, and strings that hold C++, each with its lines."""
    pieces = []
    for kind in draw(st.lists(st.sampled_from(["python", "cpp"]), min_size=1, max_size=4)):
        pieces.append((kind, draw(st.lists(python_lines if kind == "python" else cpp_lines, min_size=1, max_size=5))))
    return pieces


def text(pieces: list[tuple[str, list[str]]]) -> str:
    quote = {"python": ("", ""), "cpp": ('source = r"""\n', '\n"""')}
    return "\n".join(quote[kind][0] + "\n".join(lines) + quote[kind][1] for kind, lines in pieces) + "\n"


def comment(kind: str, words: str, form: str) -> str:
    return f"# {words}" if kind == "python" else form.format(words)


@st.composite
def scaffolds(draw: st.DrawFn) -> tuple[str, str, str]:
    """(parent, scaffold, what stands before a line feed)."""
    pieces = draw(sources())
    assume(code_lines(text(pieces)))
    marked = [(kind, list(lines)) for kind, lines in pieces]
    chosen = draw(st.sets(st.integers(0, len(pieces) - 1), min_size=1))
    for index in chosen:
        kind, lines = marked[index]
        start = draw(st.integers(0, len(lines)))
        end = draw(st.integers(start, len(lines)))
        form = draw(st.sampled_from(["/* {} */", "// {}", "    /*{}*/"]))
        begin, close = draw(st.sampled_from([(BEGIN, END), ("<<<IMPROVE BEGINS>>>", "<<< improve Ends >>>")]))
        lines[end:end] = [comment(kind, close, form)]
        lines[start:start] = [comment(kind, begin, form), comment(kind, 'advice: don\'t copy, "tile" it', form)]
    return text(pieces), text(marked), draw(st.sampled_from(["", "\r"]))


def plain(source: str) -> list[str]:
    return [line.text for line in code_lines(source)]


@given(scaffolds())
def test_comments_and_markers_alone_are_grounded(made):
    parent, scaffold, carriage = made
    assert find_violations(scaffold.replace("\n", carriage + "\n"), parent) == ()


@given(scaffolds())
def test_the_parent_comes_back_when_markers_and_comments_go(made):
    parent, scaffold, _ = made
    cleaned = remove_markers(scaffold)
    assert "IMPROVE" not in cleaned.upper()
    assert plain(cleaned) == plain(parent)
    without_advice = "\n".join(line for line in cleaned.split("\n") if "advice:" not in line)
    assert without_advice == parent


@given(scaffolds(), st.data())
def test_a_changed_token_is_a_violation_that_names_the_line(made, data):
    parent, scaffold, _ = made
    line = data.draw(st.sampled_from(code_lines(parent)))
    words = [match for match in re.finditer(r"\w+", parent.split("\n")[line.number - 1]) if match[0] in line.text]
    assume(words)
    lines = parent.split("\n")
    word = words[0]
    lines[line.number - 1] = lines[line.number - 1][: word.start()] + "changed9" + lines[line.number - 1][word.end() :]
    changed_parent = "\n".join(lines)
    assume(plain(changed_parent) != plain(parent))
    found = find_violations(scaffold, changed_parent)
    assert len(found) == 1
    assert f"line {line.number} " in found[0]
    assert "changed9" in found[0]


@given(scaffolds(), st.data())
def test_a_missing_or_doubled_marker_is_a_violation(made, data):
    parent, scaffold, _ = made
    lines = scaffold.split("\n")
    at = data.draw(st.sampled_from([number for number, line in enumerate(lines) if "IMPROVE" in line.upper()]))
    copies = data.draw(st.sampled_from([0, 2]))
    broken = "\n".join([*lines[:at], *[lines[at]] * copies, *lines[at + 1 :]])
    assert find_violations(broken, parent)


@given(st.lists(st.sampled_from([BEGIN, END, "<<<improve", " begin>>>", "# ", "//", "/*", "*/", "\n", "x = 1", '"""'])))
def test_no_marker_survives_and_a_second_removal_changes_nothing(parts):
    source = "".join(parts)
    cleaned = remove_markers(source)
    assert not re.search(r"<<<[ \t]*improve[ \t]*(begin|end)s?[ \t]*>>>", cleaned, re.IGNORECASE)
    assert remove_markers(cleaned) == cleaned
    kept = re.sub(r"[\s#/*]|<<<improve|(begin|end)s?>>>", "", source, flags=re.IGNORECASE)
    assert re.sub(r"[\s#/*]|<<<improve|(begin|end)s?>>>", "", cleaned, flags=re.IGNORECASE) == kept


@given(st.text())
def test_a_source_without_markers_is_left_alone(source):
    assume("<<<" not in source)
    assert remove_markers(source) == source


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[str], int, int]:
    """Distinct lines of code and a region in them that leaves some outside."""
    count = draw(st.integers(3, 12))
    start = draw(st.integers(0, count - 1))
    end = draw(st.integers(start + 1, count if start else count - 1))
    return [f"value_{number} = {number}" for number in range(count)], start, end


def anchored(lines: list[str], start: int, end: int) -> str:
    return "\n".join([*lines[:start], f"# {BEGIN}", "# advice", *lines[start:end], f"# {END}", *lines[end:]])


@given(edits(), st.integers(0, 5))
def test_a_change_within_the_region_is_not_outside(made, added):
    lines, start, end = made
    child = [*lines[:start], *[f"fresh_{number} = 0" for number in range(added)], *lines[end:]]
    assert measure_outside_share("\n".join(lines), anchored(*made), "\n".join(child)) == 0


@given(edits(), st.data())
def test_a_change_of_other_lines_is_outside(made, data):
    lines, start, end = made
    others = [number for number in range(len(lines)) if not start <= number < end]
    changed = data.draw(st.sets(st.sampled_from(others), min_size=1))
    child = [f"fresh_{number} = 0" if number in changed else line for number, line in enumerate(lines)]
    assert measure_outside_share("\n".join(lines), anchored(*made), "\n".join(child)) == 1


@given(scaffolds())
def test_nothing_changed_has_no_share(made):
    parent, scaffold, _ = made
    assert measure_outside_share(parent, scaffold, parent + "# a remark\n\n") is None
    assert measure_outside_share(parent, parent, "x = 1") is None


@given(scaffolds(), st.text(max_size=200))
def test_the_share_is_a_share_whatever_the_child(made, child):
    parent, scaffold, _ = made
    share = measure_outside_share(parent, scaffold, child)
    assert share is None or 0 <= share <= 1


PARENT = '''import torch

source = r"""
void add(float* a) {
    a[0] = 1;  // one
}
"""


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(4)]
'''


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    a[0]", f"    # {BEGIN}\n    a[0]", "comment of the C++"),
        ("    a[0]", f"    {BEGIN}\n    a[0]", "comment of the C++"),
        ("        return x", f"        {BEGIN}\n        return x", "in Python write"),
        ("        return x", f"        // {BEGIN}\n        return x", "in Python write"),
        ("        return x", f'        "{BEGIN}"\n        return x', "in Python write"),
        ("    a[0]", f"    /* {BEGIN} */\n    a[0]", "never ends"),
        ("        return x", f"        # {END}\n        return x", "never began"),
        ("import torch\n", "import torch\nimport os\n", "where line 3"),
        ("import torch\n", "", "where line 1"),
        ("    return [torch.rand(4)]\n", "", "nothing more"),
        ('"""', '"', "cannot be read as Python"),
    ],
)
def test_each_broken_rule_is_named(old, new, says):
    assert any(says in sentence for sentence in find_violations(PARENT.replace(old, new, 1), PARENT))


def test_a_region_does_not_cross_from_a_string_into_python():
    scaffold = PARENT.replace("    a[0]", f"    // {BEGIN}\n    a[0]").replace(
        "        return x", f"        # {END}\n        return x"
    )
    (violation,) = find_violations(scaffold, PARENT)
    assert violation == "Lines 5 to 13: a region begins and ends in the same language and string."


def test_f_strings_hold_cpp_too():
    parent = 'n = 4\nsource = f"""\nint rows = {n};\nint cols = {f"{n}"};\n"""\n'
    scaffold = parent.replace("int cols", f"/* {BEGIN} */\nint cols").replace('\n"""', f'\n// {END}\n"""')
    assert find_violations(scaffold, parent.replace('"{n}"', "'{n}'")) != ()
    assert find_violations(scaffold.replace('"{n}"', "'{n}'"), parent.replace('"{n}"', "'{n}'")) == ()


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (f"    # {BEGIN}\n", ""),
        (f"    # # {BEGIN}\n", ""),
        (f"    {BEGIN}\n", ""),
        (f"x = 1  # {BEGIN}\n", "x = 1\n"),
        (f"x = 1;  // {END}\r\n", "x = 1;\r\n"),
        (f"f(); /* {BEGIN} */ g(); /* {END} */\n", "f(); g();\n"),
        (f"int/* {BEGIN} */x;\n", "int x;\n"),
        (f"# {BEGIN} use float4\n", "# use float4\n"),
        (f"/* use float4 {END} */\n", "/* use float4 */\n"),
        (f"/* {BEGIN}\n   use float4 */\n", "/*\n   use float4 */\n"),
        (f'x = "{BEGIN}"\n', 'x = ""\n'),
        ("# <<<IMPROVE <<<IMPROVE END>>>END>>>\n", ""),
    ],
)
def test_what_is_left_of_a_line(line, left):
    assert remove_markers(f"a = 1\n{line}b = 2\n") == f"a = 1\n{left}b = 2\n"


def test_the_class_name_and_the_task_functions_are_no_change():
    scaffold = PARENT.replace("        return x + 1", f"        # {BEGIN}\n        return x + 1\n        # {END}")
    child = PARENT[: PARENT.index("def get_inputs")].replace("class Model", "class ModelNew")
    assert measure_outside_share(PARENT, scaffold, child) is None
    assert measure_outside_share(PARENT, scaffold, child.replace("x + 1", "x + 2")) == 0
    with_import = child.replace("x + 1", "os.x").replace("import torch\n", "import torch\nimport os\n")
    assert measure_outside_share(PARENT, scaffold, with_import) == pytest.approx(1 / 3)


def holding(body: str, prefix: str) -> str:
    return f'n = 4\nsource = {prefix}"""\nint first;\n{body}"""\n'


def with_region(source: str) -> str:
    return f"# {BEGIN}\nm = 7\n# {END}\n{source}"


@pytest.mark.parametrize(
    ("prefix", "parent", "scaffold"),
    [
        pytest.param("f", "#define N {n // 2}\n", "#define N {n // 64}\n", id="placeholder"),
        pytest.param(
            "rf", "int x = {n // 2}; int y = 1;\n", "int x = {n // 2}; int y = 777;\n", id="after-placeholder"
        ),
        pytest.param("f", "int x;\n", "int x;\n// {n} rows\n", id="placeholder-in-comment"),
        pytest.param("f", "int x;\n", f"int x;\n// {{n}} {BEGIN}\n// {END}\n", id="placeholder-by-marker"),
        pytest.param("f", "int x = {n:{n}}; // 1\n", "int x = {n:{n}}; // 2\n", id="nested-placeholder"),
        pytest.param("", "int f() {\n", "int f() {\n// faster\\n return 2;\n", id="escaped-line-end"),
        pytest.param("", "int f() {\n", "int f() { /* \\x2a/ return 2; /* */\n", id="escaped-delimiter"),
        pytest.param(
            "", 's = "\\\\"see http://x\\\\""; y = 1;\n', 's = "\\\\"see http://x\\\\""; y = 2;\n', id="escaped-quote"
        ),
        pytest.param("r", "#define F(x)\n", "#define F (x)\n", id="macro-with-blank"),
        pytest.param("r", "#define F(x)\n", f"#define F/* {BEGIN} *//* {END} */(x)\n", id="macro-with-comment"),
        pytest.param("r", "#define N 4\nint y;\n", "#define N 4 int y;\n", id="directive-without-end"),
        pytest.param("r", "#define N 4 int y;\n", "#define N 4\nint y;\n", id="directive-with-end"),
        pytest.param("r", "x; /* c */ #y\n", "x;\n/* c */ #y\n", id="directive-after-comment"),
        pytest.param("r", "x = a;\n", "x = a // 2\n;\n", id="division"),
        pytest.param("r", "int x;\n", "int x;\n/* a *\\\n/ evil(); /* b */\n", id="spliced-delimiter"),
        pytest.param("r", "int x;\nint y;\n", "int x;\n// why \\\nint y;\n", id="spliced-comment"),
        pytest.param("r", "int x;\n", "int x;\n// why ??/\nint y;\n", id="trigraph"),
        pytest.param("r", "x = 'abcde;//' + 1;\n", "x = 'abcde;//' + 2;\n", id="long-character"),
        pytest.param("r", 'char* s = R"x(a\n// 1\n)x";\n', 'char* s = R"x(a\n// 2\n)x";\n', id="raw-string"),
        pytest.param("r", "ab;\n", "a b;\n", id="split-name"),
        pytest.param("r", "a+b;\n", "a+ +b;\n", id="operator"),
        pytest.param("r", "int x;", f"int x;\n// {BEGIN}\n// {END}", id="line-comment-before-the-quotes"),
    ],
)
def test_changed_cpp_is_refused(prefix, parent, scaffold):
    source = "m = 7\n" + holding(parent, prefix)
    assert find_violations(with_region(holding(parent, prefix)), source) == ()
    assert find_violations(with_region(holding(scaffold, prefix)), source) != ()


@pytest.mark.parametrize(
    ("parent", "scaffold"),
    [
        pytest.param('code = """\nx = m // 2\n"""\n', 'code = """\nx = m // 3\n"""\n', id="division"),
        pytest.param('code = """\nx = (m\n// 2)\n"""\n', 'code = """\nx = (m\n// 3)\n"""\n', id="division-on-its-line"),
        pytest.param('c = """\nif m:\n  a()\n  b()\n"""\n', 'c = """\nif m:\n  a()\nb()\n"""\n', id="indentation"),
        pytest.param('c = """\ndef f(m):\n  a();\n"""\n', 'c = """\ndef f(m):\n  a();\n// 2\n"""\n', id="added-line"),
        pytest.param("x = 1 \\\n+ 2\n", "x = 1 \\\n# why\n+ 2\n", id="continued-line"),
        pytest.param('c = "#define N " r"""4;\n"""\n', 'c = "#define N " r"""\n4;\n"""\n', id="joined-before"),
        pytest.param('c = r"""int a""" + "b;"\n', 'c = r"""int a\n""" + "b;"\n', id="joined-after"),
    ],
)
def test_changed_python_is_refused(parent, scaffold):
    assert find_violations(with_region(parent), "m = 7\n" + parent) == ()
    assert find_violations(with_region(scaffold), "m = 7\n" + parent) != ()


@pytest.mark.parametrize(
    ("parent", "scaffold"),
    [
        pytest.param('r"""void f() {\n}\n"""', f'r"""\n// {BEGIN}\nvoid f() {{\n// {END}\n}}\n"""', id="first-line"),
        pytest.param('r"""void f();\n"""', f'r"""// {BEGIN}\nvoid f();\n// {END}\n"""', id="at-the-quotes"),
        pytest.param('r"""#define N 4\n"""', f'r"""\n// {BEGIN}\n#define N 4\n// {END}\n"""', id="first-directive"),
        pytest.param('r"""\nint x;"""', f'r"""\n// {BEGIN}\nint x;\n// {END}\n"""', id="last-line"),
        pytest.param('r"""\nint x;"""', f'r"""\n/* {BEGIN} */\nint x;\n/* {END} */"""', id="last-line-at-the-quotes"),
        pytest.param(
            'r"""\n#define F(x) \\\n    f(x); \\\n    g(x)\nint y;\n"""',
            f'r"""\n#define F(x) \\\n    /* {BEGIN} */ \\\n    /* why */ \\\n'
            f'    f(x); \\\n    /* {END} */ \\\n    g(x)\nint y;\n"""',
            id="macro",
        ),
        pytest.param(
            '"""\n#define F(x) \\\\\n    f(x); \\\\\n    g(x)\nint y;\n"""',
            f'"""\n#define F(x) \\\\\n    /* {BEGIN} */ \\\\\n    f(x); \\\\\n'
            f'    /* {END} */ \\\\\n    g(x)\nint y;\n"""',
            id="macro-in-a-string-that-is-not-raw",
        ),
        pytest.param(
            'r"""\nint x = a + b;\n"""',
            f'r"""\n// {BEGIN}\nint x = a /* {END}\n   here {BEGIN} */ + b;\n// {END}\n"""',
            id="added-block-within-a-statement",
        ),
        pytest.param(
            'r"""\nint x = a /* one\n two */ + b;\n"""',
            f'r"""\n// {BEGIN}\nint x = a /* one\n two */ + b;\n// {END}\n"""',
            id="block-within-a-statement",
        ),
        pytest.param(
            '"""\nprintf("%d\\\\n", x);\n"""',
            f'"""\n// {BEGIN}\nprintf("%d\\\\n", x);  // say less\n// {END}\n"""',
            id="advice-at-the-end-of-a-line",
        ),
        pytest.param(
            'f"""\n#define N {n // 2}\nvoid f() {{ }}\n"""',
            f'f"""\n#define N {{n // 2}}\n// {BEGIN}\n// why\nvoid f() {{{{ }}}}\n/* {END} */\n"""',
            id="f-string",
        ),
    ],
)
def test_a_marker_on_a_line_of_its_own_is_grounded(parent, scaffold):
    assert find_violations(f"source = {scaffold}\n", f"source = {parent}\n") == ()


@pytest.mark.parametrize("count", [500, 2000])
def test_many_regions_are_refused_at_once(count):
    body = f"/* {BEGIN} */\nint x;\n/* {END} */\n" * count
    assert find_violations(f'source = r"""\n{body}"""\n', 'source = r"""\n' + "int x;\n" * count + '"""\n') == (
        "There are more than 100 markers; mark only the code that the advice is about.",
    )


@pytest.mark.parametrize(
    "source",
    [
        "<<<IMPROVE " * 60_000 + "END>>>" * 60_000,
        f"# {BEGIN}\n" * 40_000,
        "# " * 500_000 + BEGIN,
        "/" * 1_000_000 + BEGIN + " x",
        f"{BEGIN} " * 40_000 + "x",
        f"x {BEGIN} " * 40_000,
        "<<<" + " " * 1_000_000 + BEGIN,
    ],
)
def test_no_marker_survives_in_a_long_source(source):
    assert BEGIN not in remove_markers(source)
    assert END not in remove_markers(source)


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ("x\n" * 10_000, "x\n" * 5_000 + "y\n"),
        ("x\ny\n" * 2_000, "x\nz\n" * 2_000),
        ("".join(f"a{n}\n" * (1 + n % 2) for n in range(9_000)), "".join(f"a{n}\nb\n" for n in range(9_000))),
        ("x\n" * 500_000, "y\n" * 500_000),
    ],
)
def test_the_share_of_long_sources_is_not_worked_out(parent, child):
    scaffold = f"# {BEGIN}\nx\n# {END}\n" + parent[2:]
    assert measure_outside_share("y\n" + parent, scaffold, child) is None


def test_a_long_source_with_one_changed_line_has_a_share():
    lines = [f"x{number % 9} = 0" for number in range(3_000)]
    child = [*lines[:2_000], "fresh = 1", *lines[2_001:]]
    assert measure_outside_share("\n".join(lines), anchored(lines, 1_990, 2_010), "\n".join(child)) == 0
    assert measure_outside_share("\n".join(lines), anchored(lines, 10, 20), "\n".join(child)) == 1


@pytest.mark.parametrize(
    "unit", ["/*", "/**/", "//\n", 'R"(', 'R"a(b" ', "'", ";", "x ", "\\", "\\\n", "/", "#a\n", "{", "{x}", "??/", "\n"]
)
def test_strings_of_any_kind_are_read_in_time(unit):
    count = 3_900 if "\n" in unit else 49_000 // len(unit)
    source = f'source = rf"""\n;{unit * count}\n"""\n'
    assert find_violations(with_region(source), "m = 7\n" + source) == ()
    assert find_violations(with_region(source * 25), source) != ()


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("scaffold", "parent"),
    [
        ("01-plan.md", "../../tasks/gated_activation.py"),
        ("04-plan.md", "03-debug.md"),
        ("06-plan.md", "05-code.md"),
    ],
)
def test_the_plans_of_the_example_are_grounded(scaffold, parent):
    folder = EXAMPLES / "conversations" / "first-run"
    texts = [(folder / name).read_text(encoding="utf-8") for name in (scaffold, parent)]
    blocks = [re.search(r"```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for text in texts]
    sources = [block[1] if block else text for block, text in zip(blocks, texts, strict=True)]
    assert find_violations(*sources) == ()
