"""The queries of an analysis give the values of its figures, in DuckDB."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest

import towpath

DEVICES = 12
TRANSPORTS = ["mptcp", "mpquic", "tcp", "quic"]
# Columns of a query whose values are the points of its figure.
POINTS = {
    "transport-ratio": ["ratio"],
    "handover-duration": ["handover_received_s", "handover_sent_s"],
    "max-delay": ["max_delay_up_s", "max_delay_down_s"],
}


def place(path: Path, device: int, *, mobile: bool) -> None:
    """Changes a simulated result into one that a device made in a campaign."""
    first, *records = path.read_text().splitlines()
    meta = json.loads(first)
    meta["conditions"] |= {
        "campaign": "study",
        "campaign run": f"{int(mobile)}/{TRANSPORTS.index(meta['transport'])}",
        "address family": "ipv4",
        "port": "443",
        "server": f"server-{device % 2}",
    }
    if mobile:
        meta["conditions"]["mode"] = "mobile"
        loss = {"type": "event", "t_ns": 3_000_000_000, "kind": "link"}
        records.insert(0, json.dumps(loss | {"text": "the first network was lost: no carrier"}))
    path.write_text("\n".join([json.dumps(meta), *records]) + "\n")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an analysis of twelve devices."""
    folder = tmp_path_factory.mktemp("analysis")
    moving = towpath.Scenario("interactive-handover").replace({"flows.duration": "8 s"})
    moving = moving.replace({"paths.cellular.backup": True})
    still = towpath.Scenario("two-links").replace({"flows.duration": "200 ms"})
    for device in range(1, DEVICES + 1):
        for scenario, transports, mobile in [
            (moving, ["mptcp", "mpquic"], True),
            (still, ["tcp", "quic"], False),
        ]:
            seeded = scenario.replace({"run.seed": device})
            result = towpath.run(seeded, transports=transports)
            for path in result.save(folder / "results" / f"d{device}" / scenario.name):
                place(path, device, mobile=mobile)
    arguments = ["collect", "analyse", "--folder", "results", "--out", "figures"]
    subprocess.run([towpath.command(), *arguments], cwd=folder, check=True, capture_output=True)
    return folder / "figures"


def queried(figures: Path, query: str) -> list[dict[str, Any]]:
    with duckdb.connect() as database:
        database.execute(f"SET file_search_path = '{figures}'")
        cursor = database.execute(query)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_every_query_runs_and_gives_the_points_of_its_figure(figures: Path):
    analysis = json.loads((figures / "analysis.json").read_text())
    assert {"usage", "connectivity", *POINTS} <= {figure["id"] for figure in analysis["figures"]}
    for figure in analysis["figures"]:
        rows = queried(figures, figure["query"])
        assert rows, figure["id"]
        if columns := POINTS.get(figure["id"]):
            with (figures / f"{figure['id']}.points.csv").open() as file:
                drawn = {float(point["x"]) for point in csv.DictReader(file)}
            values = {row[column] for row in rows for column in columns if row[column] is not None}
            # The points have six significant digits.
            assert drawn == {float(f"{value:.6g}") for value in values}, figure["id"]


def test_the_counts_of_a_query_are_those_of_the_table(figures: Path):
    analysis = json.loads((figures / "analysis.json").read_text())
    usage, connectivity = (
        next(figure for figure in analysis["figures"] if figure["id"] == name)
        for name in ("usage", "connectivity")
    )
    counts = {
        ("mobile" if row["mobile"] else "stable", row["server"]): (row["runs"], row["devices"])
        for row in queried(figures, usage["query"])
    }
    assert counts == {
        (row["mode"], row["server"]): (row["runs"], row["devices"])
        for row in usage["tables"][0]["rows"]
    }
    assert {row["transport"]: row["attempts"] for row in queried(figures, connectivity["query"])} == {
        "tcp": DEVICES,
        "quic": DEVICES,
    }
