"""The notebooks are stored without outputs, and their cells run in order."""

import ast
import json
import re
from pathlib import Path

import pytest
import towpath

FOLDER = Path(__file__).parents[1] / "notebooks"

# Settings in the first code cell that make a notebook shorter.
THINNED = {
    "handover": {"SEEDS = 5": "SEEDS = 2", '"10 s"': '"5 s"'},
    "schedulers": {
        'SCHEDULERS = ["linux", "min-rtt", "round-robin", "redundant", "blest", "ecf"]': (
            'SCHEDULERS = ["linux", "redundant"]'
        ),
        "SEEDS = 5": "SEEDS = 2",
        '"10 s"': '"2 s"',
    },
    "sweep": {
        '["10 ms", "50 ms", "100 ms", "150 ms", "200 ms"]': '["10 ms", "100 ms"]',
        "SEEDS = 5": "SEEDS = 1",
        '"10 s"': '"2 s"',
    },
    "capture": {'"10 s"': '"4 s"'},
}

# Names that a notebook leaves, and what they must have.
RESULTS = {
    "handover": lambda names: names["table"].shape == (4, 3) and len(names["result"]) == 8,
    "schedulers": lambda names: set(names["delays"]) == {"linux", "redundant"},
    "sweep": lambda names: names["sweep"].status().is_done and len(names["rows"]) == 6,
    "capture": lambda names: set(names["table"]["path"]) == {"wifi", "cellular"},
}


def notebook(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


def thinned_cells(name):
    """Returns the sources of the code cells, the first one with short settings."""
    first, *others = [source(c) for c in notebook(name)["cells"] if c["cell_type"] == "code"]
    for long, short in THINNED[name].items():
        assert first.count(long) == 1, f"{name}: the first cell no longer contains `{long}` once"
        first = first.replace(long, short)
    return [first, *others]


def run_cell(code, file, names):
    """Runs a cell, and returns what a notebook shows of its last expression: HTML or text."""
    statements = ast.parse(code, file).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    exec(compile(ast.Module(statements, []), file, "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    if value is None or code.rstrip().endswith(";"):
        return None
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    return repr(value) if html is None else html


def test_every_notebook_is_executed():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(THINNED)


@pytest.mark.parametrize("name", THINNED)
def test_the_cells_of_a_notebook_run_in_order(name, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    if name == "capture":
        try:
            towpath.command()
        except towpath.errors.UnavailableError:
            pytest.skip("the program `towpath` is not installed")
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("agg")
    names = {"__name__": "__main__"}
    figures = 0
    for number, code in enumerate(thinned_cells(name), start=1):
        shown = run_cell(code, f"{name}.ipynb, code cell {number}", names)
        assert shown is None or shown.strip(), f"code cell {number} shows nothing"
        # As in a notebook, figures are drawn and closed after each cell.
        for figure in map(pyplot.figure, pyplot.get_fignums()):
            figure.canvas.draw()
            figures += 1
        pyplot.close("all")
    assert figures >= 1
    assert RESULTS[name](names)


@pytest.mark.parametrize("name", THINNED)
def test_a_notebook_is_stored_without_outputs(name):
    stored = notebook(name)
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert set(stored["metadata"]) == {"kernelspec", "language_info"}
    identifiers = [cell["id"] for cell in stored["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(re.fullmatch(r"[a-z0-9-]{1,64}", identifier) for identifier in identifiers)
    for cell in stored["cells"]:
        assert cell["metadata"] == {}
        assert source(cell).strip(), "a cell is empty"
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    text = json.dumps(stored, indent=1, ensure_ascii=False) + "\n"
    assert (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", THINNED)
def test_a_notebook_begins_with_its_reader_and_its_settings(name):
    title, settings = notebook(name)["cells"][:2]
    assert re.match(r"# .+\n\n\*For .+ Needs .+\*\n", source(title), re.DOTALL)
    assert all(isinstance(line, ast.Assign) for line in ast.parse(source(settings)).body)


@pytest.mark.parametrize("name", THINNED)
def test_the_links_of_a_notebook_lead_to_files(name):
    text = "".join(source(c) for c in notebook(name)["cells"] if c["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert (FOLDER / target).is_file(), target
