//! Tables of a run as CSV and Parquet, and the export of all runs.

use std::fs::File;
use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};
use towpath_collect::{CollectError, Role, Store, run_to_end};
use towpath_report::ResultTable;

use crate::site::{Client, Collector, TestFolder, on_both_databases, result};

on_both_databases!(
    a_table_has_the_same_rows_in_both_formats,
    an_export_has_the_rows_of_all_matching_runs,
    a_wrong_choice_is_refused_and_writes_nothing,
);

/// Uploads six runs, half of them over MPTCP; returns a viewer.
fn fill(collector: &Collector) -> (crate::site::Site, Client) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab3", Role::Uploader));
    for number in 0..6 {
        let result = result(number, |meta| {
            meta["transport"] = ["tcp", "mptcp"][number as usize % 2].into();
        });
        assert_eq!(uploader.upload(&result).status, 201);
    }
    let viewer = site.client(&site.token("reader", Role::Viewer));
    (site, viewer)
}

fn rows(path: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

/// Returns the values of a column as texts; an absent value is empty.
fn column(rows: &[Row], name: &str) -> Vec<String> {
    let value = |row: &Row| {
        let (_, field) = row.get_column_iter().find(|(column, _)| *column == name).unwrap();
        if let Field::Str(text) = field {
            return text.clone();
        }
        if *field == Field::Null { String::new() } else { field.to_string() }
    };
    rows.iter().map(value).collect()
}

/// Splits a line of CSV whose quoted cells contain no line breaks.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    cells.push(cell);
    cells
}

fn a_table_has_the_same_rows_in_both_formats(collector: &Collector) {
    let (_site, viewer) = fill(collector);
    let list = viewer.get("/api/v1/runs").json();
    let id = list["runs"][0]["id"].as_str().unwrap();
    let page = viewer.get(&format!("/runs/{id}")).body;
    let folder = TestFolder::create();
    let mut compared = 0;
    for table in ResultTable::ALL.into_iter().filter(|table| table.has_fixed_columns()) {
        let address = format!("/api/v1/runs/{id}/tables/{}", table.name());
        let csv = viewer.get(&format!("{address}.csv"));
        let parquet = viewer.get_bytes(&format!("{address}.parquet"));
        let path = folder.path().join(table.name());
        std::fs::write(&path, parquet).unwrap();
        let rows = rows(&path);
        let lines: Vec<Vec<String>> = csv.body.lines().map(cells).collect();
        assert_eq!(rows.len(), lines.len() - 1, "{}", table.name());
        assert_eq!(page.contains(&format!("{address}.csv")), !rows.is_empty(), "{}", table.name());
        for name in ["t_ns", "subflow", "path", "goodput_bps", "share", "backup", "text"] {
            let Some(index) = lines[0].iter().position(|column| column == name) else { continue };
            let expected: Vec<&str> =
                lines[1..].iter().map(|cells| cells[index].as_str()).collect();
            assert_eq!(column(&rows, name), expected, "{} {name}", table.name());
            compared += expected.len();
        }
        assert!(column(&rows, "run").iter().all(|run| run == id));
    }
    assert!(compared > 50, "only {compared} values were compared");
    assert!(page.contains("/tables/subflows.parquet"));
    for (file, words) in [
        ("subflow.csv", "there is no such table"),
        ("subflows.xlsx", "there is no such table"),
        ("shares.parquet", "exists as CSV only"),
        ("..%2f..%2fcatalogue.csv", "there is no such table"),
    ] {
        let reply = viewer.get(&format!("/api/v1/runs/{id}/tables/{file}"));
        assert_eq!(reply.status, 404, "{file}");
        assert!(reply.body.contains(words), "{}", reply.body);
    }
}

fn export(
    collector: &Collector,
    target: &Path,
    query: &str,
    tables: &[&str],
) -> Result<u64, CollectError> {
    let tables: Vec<String> = tables.iter().map(|&table| table.to_owned()).collect();
    run_to_end(async {
        let store = Store::open(&collector.config()).await?;
        Ok(store.export(target, query, &tables).await?.runs)
    })
}

fn an_export_has_the_rows_of_all_matching_runs(collector: &Collector) {
    let (_site, viewer) = fill(collector);
    let target = TestFolder::create();
    assert_eq!(export(collector, target.path(), "", &[]).unwrap(), 6);
    let runs = rows(&target.path().join("runs.parquet"));
    let list = viewer.get("/api/v1/runs").json();
    let mut expected: Vec<String> = list["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["id"].as_str().unwrap().into())
        .collect();
    expected.sort();
    assert_eq!(column(&runs, "id"), expected);
    assert_eq!(column(&runs, "host"), ["lab3"; 6]);
    let intervals = rows(&target.path().join("intervals.parquet"));
    let csv = viewer.get(&format!("/api/v1/runs/{}/tables/intervals.csv", expected[0])).body;
    assert_eq!(intervals.len(), 6 * (csv.lines().count() - 1));
    let names: Vec<String> = std::fs::read_dir(target.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 16, "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(".parquet")), "{names:?}");

    let address = "http://collector/?transport=mptcp&since=2020-01-01";
    assert_eq!(export(collector, target.path(), address, &["runs"]).unwrap(), 3);
    let runs = rows(&target.path().join("runs.parquet"));
    assert_eq!(column(&runs, "transport"), ["mptcp"; 3]);
    assert_eq!(export(collector, target.path(), "until=2020-01-01", &["runs"]).unwrap(), 0);
}

fn a_wrong_choice_is_refused_and_writes_nothing(collector: &Collector) {
    let target = TestFolder::create();
    let into = target.path().join("tables");
    for (query, tables, words) in [
        ("colour=red", vec![], "there is no filter `colour`"),
        ("a b", vec![], "is not a query"),
        ("", vec!["subflow"], "there is no table `subflow`; there are runs, flows"),
        ("", vec!["shares"], "there is no table `shares`"),
    ] {
        let error = export(collector, &into, query, &tables).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!into.exists());
    }
}
