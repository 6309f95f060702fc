"""The examples of the guide and of the docstrings work as they are shown."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

PARTS = ("_api", "components", "engines", "errors", "plot")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
MODULES = ("towpath", *(f"towpath.{name}" for name in PARTS))

# Settings that make the guide's examples shorter; the printed numbers follow.
THINNED = {'"seeds": 20,': '"seeds": 2,', "runs=120, chunks=12": "runs=12, chunks=2"}
THINNED |= {"chunks_done=12": "chunks_done=2"}


class Example(NamedTuple):
    """A block of Python, its line in the guide, and the output that the guide shows."""

    line: int
    code: str
    packages: list[str]
    output: str | None


def examples(text):
    """Returns the blocks of Python in order, each with the block of text that follows it."""
    found = []
    block = re.compile(r"(?:<!-- needs: ([^\n]*) -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
    for match in block.finditer(text):
        packages, language, content = match.groups()
        line = text[: match.start(3)].count("\n") + 1
        if language == "python":
            found.append(Example(line, content, (packages or "").split(), None))
        elif language == "text":
            assert found, f"line {line}: output without an example"
            assert found[-1].output is None, f"line {line}: a second output of one example"
            found[-1] = found[-1]._replace(output=content)
    return found


def matches(shown, printed):
    """True if the output is the one that is shown, in which `…` replaces any text."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def thinned(text):
    for long, short in THINNED.items():
        assert long in text, f"the guide no longer contains `{long}`"
        text = text.replace(long, short)
    return text


def test_the_examples_of_the_guide_work_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = {"__name__": "__main__"}
    run = 0
    for example in examples(thinned(GUIDE.read_text(encoding="utf-8"))):
        if all(importlib.util.find_spec(package) for package in example.packages):
            # Errors show the line of the guide.
            code = compile("\n" * (example.line - 1) + example.code, str(GUIDE), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(code, names)
            if example.output is not None:
                assert matches(example.output, output.getvalue()), (
                    f"{GUIDE}:{example.line} printed:\n{output.getvalue()}"
                )
            run += 1
    assert run >= 8


def test_the_first_example_is_that_of_the_readme():
    readme = (GUIDE.parents[2] / "README.md").read_text(encoding="utf-8")
    guide = GUIDE.read_text(encoding="utf-8")
    code = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
    assert code.findall(readme) == code.findall(guide)[:1]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    if name == "towpath.plot":
        pytest.importorskip("matplotlib")
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted > 0 or name == "towpath.errors"


def test_shown_output_may_leave_out_text():
    assert matches("a … c\n", "a b c\n")
    assert not matches("a … c\n", "a b d\n")
